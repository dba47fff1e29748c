"""What a user chooses by name: generations, machine types, requirements, waivers, the device group.

The command line, the specification file and the single-file checker take the same words and refuse the
same ones, with the nearest names that exist.
"""

from __future__ import annotations

from collections.abc import Sequence

from tpu_image import catalogue
from tpu_image.catalogue import groups, hardware
from tpu_image.catalogue.hardware import Generation, MachineType
from tpu_image.catalogue.requirement import Platform


class ChoiceError(ValueError):
    """A word is none of those allowed: the message is one line that names it and what is allowed."""


def unknown(what: str, word: str, names: Sequence[str], *, likeness: float = 0.6) -> ChoiceError:
    """Make the refusal of a word, with the names that look at least so much like it, or else all of them."""
    import difflib

    similar = difflib.get_close_matches(word, names, n=3, cutoff=likeness)
    hint = f"did you mean {' or '.join(similar)}?" if similar else f"give one of {', '.join(names)}"
    return ChoiceError(f"unknown {what} {word!r}; {hint}")


def generations(words: str) -> tuple[Generation, ...]:
    """Read a list of generation names, separated by commas, into the catalogue's order.

    Raises:
        ChoiceError: a name is unknown, or there is none.
    """
    chosen = {word.strip().lower() for word in words.split(",") if word.strip()}
    known = [g.name for g in hardware.GENERATIONS]
    for word in sorted(chosen):
        if word not in known:
            raise unknown("TPU generation", word, known)
    if not chosen:
        raise ChoiceError(f"no TPU generation is named; give some of {', '.join(known)}")
    return tuple(g for g in hardware.GENERATIONS if g.name in chosen)


def machine_type(word: str) -> MachineType:
    """Find a Compute Engine machine type by name; ``-tpu`` may end it, as the Cloud TPU API writes it.

    Raises:
        ChoiceError: no machine type with TPUs has that name.
    """
    name = word.strip().lower().removesuffix("-tpu")
    for machine in hardware.MACHINE_TYPES:
        if machine.name == name:
            return machine
    raise unknown("machine type", word, [m.name for m in hardware.MACHINE_TYPES], likeness=0.9)


def selection(name: str) -> str:
    """Accept the id of a requirement or the name of a section.

    Raises:
        UnknownRequirementError: it is neither.
    """
    catalogue.select([name])
    return name


def platform(word: str) -> Platform:
    """Find a platform by name.

    Raises:
        ChoiceError: there is none of that name.
    """
    for candidate in Platform:
        if candidate.value == word:
            return candidate
    raise unknown("platform", word, [p.value for p in Platform])


def device_group(name: str) -> str:
    """Accept a group name as groupadd(8) does by default; it is written into udev rules as it is.

    Raises:
        ChoiceError: groupadd would refuse it.
    """
    if not groups.is_name(name):
        raise ChoiceError(
            f"{name!r} is no group name; give up to {groups.NAME_LIMIT} of a-z, 0-9, - and _, a letter first"
        )
    return name


def waiver_reason(text: str) -> str:
    """Accept the reason of a waiver, as one line.

    Raises:
        ChoiceError: it is blank.
    """
    reason = " ".join(text.split())
    if not reason:
        raise ChoiceError("the waiver has no reason; say why the requirement need not hold")
    return reason


def waiver(text: str) -> tuple[str, str]:
    """Read ``ID=REASON`` into the id of a requirement and the reason; a whole section is not waived at once.

    Raises:
        ChoiceError: it has no ``=``, or the reason is blank.
        UnknownRequirementError: no requirement has the id.
    """
    name, equals, reason = (part.strip() for part in text.partition("="))
    if not equals:
        raise ChoiceError(f'{text!r} is no waiver; write ID=REASON, such as kernel.idle="power budget"')
    return catalogue.find(name).id, waiver_reason(reason)
