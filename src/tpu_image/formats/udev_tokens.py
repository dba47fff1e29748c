"""The keys of udev rules: which operators and attributes each takes, and what a token does to its line.

Sources: udev(7); the token table of systemd's ``udev-rules.c``, versions 249 to 257.
"""

from __future__ import annotations

from typing import NamedTuple

from tpu_image.formats.udev_values import split_format

MATCHES = ("==", "!=")
"""Operators that compare; the others assign."""

UPDATES, NODE, NAMES, JUMPS, LABELS, STATIC_NODE = 1, 2, 4, 8, 16, 32
"""What a token makes its line do: change something of any event, set up a device node, name a network
interface, go to a label, be one, or set up a static node. A line that does none of these is dropped, and a
line that does only what an event has no use for (``NODE`` without a node) is not even compared."""

_LAST_CONDITION = 25


class Token:
    """One ``KEY{attribute}operator"value"`` of a rule.

    ``value`` is unquoted and unescaped, ``prefix`` holds the letters before the quotation mark (``e``: C
    escapes, ``i``: case is ignored). ``start`` and ``end`` are offsets into the joined text of the rule.

    Attributes:
        order: place in which udev applies the tokens of one line, whatever their written order.
        since: systemd version that first takes it; 0 where all do. An older one ignores the whole line.
    """

    __slots__ = (
        "attribute",
        "effect",
        "end",
        "key",
        "operator",
        "order",
        "prefix",
        "since",
        "start",
        "value",
    )

    def __init__(
        self, key: str, attribute: str | None, operator: str, value: str, prefix: str, span: tuple[int, int]
    ) -> None:
        self.key = key
        self.attribute = attribute
        self.operator = operator
        self.value = value
        self.prefix = prefix
        self.start, self.end = span
        self.order = self.effect = self.since = 0

    @property
    def condition(self) -> bool:
        """Whether it decides if the line applies (``PROGRAM`` and ``IMPORT`` do, whatever their operator)."""
        return self.order <= _LAST_CONDITION

    @property
    def name(self) -> str:
        """The key as written, with its attribute."""
        return self.key if self.attribute is None else f"{self.key}{{{self.attribute}}}"


class _Use(NamedTuple):
    """What a key takes. ``attribute``: True where it must have one, False where it must not, None else."""

    attribute: bool | None
    operators: frozenset[str]
    match_order: int = -1
    assign_order: int = -1
    effect: int = 0
    lenient: frozenset[str] = frozenset()
    """Operators that udev reads as ``=`` with a warning."""


def _operators(text: str) -> frozenset[str]:
    return frozenset(text.split())


_COMPARE = _operators("== !=")
_KEYS: dict[str, _Use] = {
    "ACTION": _Use(False, _COMPARE, 0),
    "DEVPATH": _Use(False, _COMPARE, 1),
    "KERNEL": _Use(False, _COMPARE, 2),
    "SYMLINK": _Use(False, _operators("== != = += := -="), 3, 43, NODE),
    "NAME": _Use(False, _operators("== != = := +="), 4, 42, NAMES, lenient=_operators("+=")),
    "ENV": _Use(True, _operators("== != = += :="), 5, 41, UPDATES, lenient=_operators(":=")),
    "CONST": _Use(True, _COMPARE, 6),
    "TAG": _Use(False, _operators("== != = += -= :="), 7, 38, UPDATES, lenient=_operators(":=")),
    "SUBSYSTEM": _Use(False, _COMPARE, 8),
    "DRIVER": _Use(False, _COMPARE, 9),
    "ATTR": _Use(True, _operators("== != = += :="), 10, 44, UPDATES, lenient=_operators("+= :=")),
    "SYSCTL": _Use(True, _operators("== != = += :="), 11, 45, UPDATES, lenient=_operators("+= :=")),
    "KERNELS": _Use(False, _COMPARE, 12),
    "SUBSYSTEMS": _Use(False, _COMPARE, 13),
    "DRIVERS": _Use(False, _COMPARE, 14),
    "ATTRS": _Use(True, _COMPARE, 15),
    "TAGS": _Use(False, _COMPARE, 16),
    "TEST": _Use(None, _COMPARE, 17),
    "PROGRAM": _Use(False, _operators("== != = += :="), 18, 18, UPDATES),
    "IMPORT": _Use(True, _operators("== != = += :="), 19, 19, UPDATES),
    "RESULT": _Use(False, _COMPARE, 25),
    "OPTIONS": _Use(False, _operators("= += :="), -1, 26, UPDATES),
    "OWNER": _Use(False, _operators("= := +="), -1, 32, NODE, lenient=_operators("+=")),
    "GROUP": _Use(False, _operators("= := +="), -1, 33, NODE, lenient=_operators("+=")),
    "MODE": _Use(False, _operators("= := +="), -1, 34, NODE, lenient=_operators("+=")),
    "SECLABEL": _Use(True, _operators("= += :="), -1, 40, UPDATES, lenient=_operators(":=")),
    "RUN": _Use(None, _operators("= += :="), -1, 47, UPDATES),
    "GOTO": _Use(False, _operators("="), -1, 48, JUMPS),
    "LABEL": _Use(False, _operators("="), -1, 49, LABELS),
}

FIXED_KEYS = frozenset({"ACTION", "DEVPATH", "KERNEL", "SUBSYSTEM", "DRIVER"})
"""Keys of the event itself: comparing them gives the same answer on every line."""

PARENT_KEYS = frozenset({"KERNELS", "SUBSYSTEMS", "DRIVERS", "ATTRS", "TAGS"})
"""Keys that one parent, or the device itself, must satisfy together."""

_IMPORTS = ("file", "program", "builtin", "db", "cmdline", "parent")
_BUILTINS = (
    "blkid",
    "btrfs",
    "hwdb",
    "input_id",
    "keyboard",
    "kmod",
    "net_id",
    "net_setup_link",
    "path_id",
    "usb_id",
    "uaccess",
)
_NEWER_BUILTINS = {"net_driver": 255, "dissect_image": 258, "factory_reset": 258, "tpm2_id": 258}
_FIXED_PROPERTIES = (
    "ACTION",
    "DEVLINKS",
    "DEVNAME",
    "DEVPATH",
    "DEVTYPE",
    "DRIVER",
    "IFINDEX",
    "MAJOR",
    "MINOR",
    "SEQNUM",
    "SUBSYSTEM",
    "TAGS",
)


def judge(token: Token) -> str:
    """Set order, effect and first version of a token; answer why udev drops its line, or empty."""
    use = _KEYS.get(token.key)
    if use is None:
        return f"unknown key {token.key}"
    if token.attribute is not None and use.attribute is False:
        return f"{token.key} takes no attribute"
    if not token.attribute and use.attribute:
        return f"{token.key} needs an attribute in braces"
    if token.operator not in use.operators:
        return f"{token.key} does not take the operator {token.operator}"
    compares = token.operator in MATCHES
    token.order = use.match_order if compares else use.assign_order
    token.effect = 0 if compares and token.key not in ("PROGRAM", "IMPORT") else use.effect
    if "i" in token.prefix:
        if not compares or token.key in ("TEST", "PROGRAM", "IMPORT"):
            return f'{token.key} does not take the prefix i"…"'
        token.since = 257
    special = _SPECIAL.get(token.key)
    return special(token) if special else ""


def _judge_symlink(token: Token) -> str:
    if token.operator == "-=":
        token.since = 257
    return ""


def _judge_name(token: Token) -> str:
    if token.operator not in MATCHES and token.value in ("", "%k"):
        return f'NAME="{token.value}" does nothing'
    return ""


def _judge_env(token: Token) -> str:
    if token.operator not in MATCHES and token.attribute in _FIXED_PROPERTIES:
        return f"ENV{{{token.attribute}}} cannot be set"
    return ""


def _judge_const(token: Token) -> str:
    if token.attribute == "cvm":
        token.since = 258
        return ""
    return "" if token.attribute in ("arch", "virt") else "CONST knows arch and virt alone"


def _judge_test(token: Token) -> str:
    if token.attribute and parse_mode(token.attribute) is None:
        return f"TEST{{{token.attribute}}} is not an octal mode"
    return ""


def _judge_import(token: Token) -> str:
    if token.attribute not in _IMPORTS:
        return f"IMPORT{{{token.attribute}}} does not exist"
    if token.attribute == "builtin":
        reason = _judge_builtin(token)
        if reason:
            return reason
    if token.attribute == "program" and not _judge_builtin(token):
        token.attribute = "builtin"
    token.order = 19 + _IMPORTS.index(token.attribute or "")
    return ""


def _judge_run(token: Token) -> str:
    if token.attribute == "builtin":
        token.order = 46
        return _judge_builtin(token)
    return "" if token.attribute in (None, "program") else f"RUN{{{token.attribute}}} does not exist"


def _judge_builtin(token: Token) -> str:
    word = (token.value.split() or [""])[0]
    if any(name.startswith(word) for name in _BUILTINS):
        return ""
    if word in _NEWER_BUILTINS:
        token.since = max(token.since, _NEWER_BUILTINS[word])
        return ""
    return f"unknown built-in command {word}"


def _judge_options(token: Token) -> str:
    name, _, argument = token.value.partition("=")
    if name == "link_priority" and not _is_integer(argument):
        return f"link_priority={argument} is not a number"
    if name == "static_node":
        token.order, token.effect = 39, STATIC_NODE
    elif not _known_option(token.value):
        token.effect = 0
    return ""


def _is_integer(text: str) -> bool:
    digits = text[1:] if text[:1] in ("+", "-") else text
    return digits.isascii() and digits.isdecimal()


def _known_option(value: str) -> bool:
    name, equals, argument = value.partition("=")
    if equals:
        return name in ("static_node", "link_priority", "log_level") or (
            name == "string_escape" and argument in ("none", "replace")
        )
    return name in ("db_persist", "watch", "nowatch", "dump")


_SPECIAL = {
    "SYMLINK": _judge_symlink,
    "NAME": _judge_name,
    "ENV": _judge_env,
    "CONST": _judge_const,
    "TEST": _judge_test,
    "IMPORT": _judge_import,
    "RUN": _judge_run,
    "OPTIONS": _judge_options,
}


def parse_mode(text: str) -> int | None:
    """Read an octal mode as udev does; None where it is none or over 07777."""
    if not text or len(text) > 12 or text.strip("01234567"):
        return None
    mode = int(text, 8)
    return mode if mode <= 0o7777 else None


def complaints(token: Token) -> list[str]:
    """Say what udev warns about in a token that it takes."""
    found = []
    use = _KEYS[token.key]
    if token.operator in use.lenient:
        found.append(f"{token.name} takes {token.operator} as =")
    if token.key == "OPTIONS" and not _known_option(token.value):
        found.append(f"unknown option {token.value}")
    if token.key == "SUBSYSTEM" and token.value in ("bus", "class"):
        found.append(f'SUBSYSTEM=="{token.value}" must be written "subsystem"')
    if token.key in ("ATTR", "ATTRS", "SYSCTL") and split_format(token.attribute or "")[1]:
        found.append(f"{token.name}: {split_format(token.attribute or '')[1]}")
    if _substitutes(token) and split_format(token.value)[1]:
        found.append(f"{token.name}: {split_format(token.value)[1]}")
    if not token.value and token.key in ("TEST", "PROGRAM", "IMPORT", "TAG", "SECLABEL", "RUN"):
        found += [f"{token.name} has an empty value"] if _substitutes(token) else []
    return found


def _substitutes(token: Token) -> bool:
    if token.key in ("TEST", "PROGRAM", "IMPORT"):
        return True
    if token.key in ("OWNER", "GROUP", "MODE"):
        return "%" in token.value or "$" in token.value
    return not token.condition and token.key not in ("OPTIONS", "GOTO", "LABEL")
