"""What udev would do for one event: which programs run, which mode, owner and tags result, and why.

Nothing is executed. A line whose comparison needs a program, the kernel's state or an attribute that is not
known is *undecided*: what it would assign is kept apart, with the reason, and never taken for certain.

Sources: udev(7) and systemd's ``udev-rules.c`` and ``udev-event.c``, versions 249 to 257.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tpu_image.formats import FormatError
from tpu_image.formats.udev_model import Assignment, Command, Device, Machine, Outcome, Truth
from tpu_image.formats.udev_rules import Guard, Rule, RulesFile, is_unknown_name
from tpu_image.formats.udev_substitution import LINE_LIMIT, NAME_LIMIT, PATH_LIMIT, EventValues, TooLongError
from tpu_image.formats.udev_tokens import (
    FIXED_KEYS,
    JUMPS,
    NAMES,
    NODE,
    PARENT_KEYS,
    UPDATES,
    Token,
    parse_mode,
)
from tpu_image.formats.udev_values import Budget, OverspentError, pattern

STEP_LIMIT = 300_000
"""Comparisons of one evaluation; the rules of a real system take some thousand."""

_EVENTS_KEPT = 64


def evaluate(
    files: Sequence[tuple[str, RulesFile]], device: Device, action: str, machine: Machine | None = None
) -> Outcome:
    """Apply rules files, given as (path, content) in the order in which udev reads them, to an event.

    Raises:
        FormatError: evaluating them takes more than :data:`STEP_LIMIT` steps.
    """
    event = _Event(device, action, machine or Machine())
    try:
        for path, file in files:
            event.apply_file(path, file)
    except OverspentError:
        reason = f"evaluating the udev rules for {device.kernel} takes more than {STEP_LIMIT} steps"
        raise FormatError(reason) from None
    return event.outcome


class _Event(EventValues):
    """The state of one event while the rules are applied to it."""

    def __init__(self, device: Device, action: str, machine: Machine) -> None:
        super().__init__(device, action, Budget(STEP_LIMIT))
        self.machine = machine
        self.run_final: Truth = False
        self.run_decider = ""
        self.removed_tags: dict[str, bool] = {}
        """Tags that ``TAG==`` finds all the same while udev's database has no entry of the device."""
        self.guarded: dict[Guard, bool] = {}
        self.fixed = {
            "ACTION": action,
            "DEVPATH": device.devpath,
            "KERNEL": device.kernel,
            "SUBSYSTEM": device.subsystem,
            "DRIVER": device.driver,
        }
        self.useful = UPDATES | JUMPS
        if action != "remove":
            self.useful |= (NODE if device.node else 0) | (NAMES if "IFINDEX" in device.properties else 0)

    def apply_file(self, path: str, file: RulesFile) -> None:
        """Apply the rules of one file in turn, following its GOTOs."""
        resume_at, doubtful_until, region_doubt = 0, 0, ""
        passes = self._passes
        for index in self._passing(file):
            if index < resume_at:
                continue
            if file.error and file.lines[index].last_line >= file.error_line:
                return
            rule = file.rule(index)
            if rule.error or not rule.effects & self.useful or not all(map(passes, rule.guards)):
                continue
            region = region_doubt if index < doubtful_until else file.error
            taken = self._apply_rule(path, rule, region)
            if taken is None or rule.target is None:
                continue
            if not taken:
                resume_at = rule.target
            elif rule.target > doubtful_until:
                doubtful_until, region_doubt = rule.target, taken

    def _passing(self, file: RulesFile) -> list[int]:
        """Give the rules that do not begin with a comparison that fails; the rest need not even be read."""
        key = tuple(self.fixed.values())
        if key not in file.passing:
            if len(file.passing) >= _EVENTS_KEPT:
                file.passing.clear()
            self.budget.spend(len(file.lines))
            file.passing[key] = [
                index
                for index, lines in enumerate(file.lines)
                if lines.guard is None or self._passes(lines.guard)
            ]
        return file.passing[key]

    def _apply_rule(self, path: str, rule: Rule, doubt: str) -> str | None:
        """Apply one rule; answer None where it does not apply, otherwise what it depends on, or empty."""
        if rule.since > self.machine.systemd:
            if self.machine.systemd:
                return None
            doubt = doubt or f"systemd {rule.since} or newer"
        first_doubt: Token | None = None
        parents_done = False
        for token in rule.ordered:
            self.budget.spend(1)
            if not token.condition:
                break
            if token.key in PARENT_KEYS:
                if parents_done:
                    continue
                parents_done = True
                truth = self._parents_match(rule)
            else:
                truth = self._holds(token)
            if truth is False:
                return None
            if truth is None and first_doubt is None:
                first_doubt = token
        names_doubt = self._names_doubt(rule)
        if names_doubt is None:
            return None
        if first_doubt is not None:
            doubt = doubt or f'{first_doubt.name}{first_doubt.operator}"{first_doubt.value}"'
            self.outcome.undecided.append(
                Assignment(first_doubt.value, path, rule.line_of(first_doubt), first_doubt.name)
            )
        self._assign_all(path, rule, doubt or names_doubt)
        return doubt

    def _names_doubt(self, rule: Rule) -> str | None:
        """Say what an unknown OWNER or GROUP makes of a line; None where it voids it (systemd 258)."""
        if not rule.effects & NODE:
            return ""
        for token in rule.tokens:
            if self._names_nobody(token):
                if self.machine.systemd >= 258:
                    return None
                if not self.machine.systemd:
                    return f'{token.key}="{token.value}", which does not exist'
        return ""

    def _names_nobody(self, token: Token) -> bool:
        names = {"OWNER": self.machine.users, "GROUP": self.machine.groups}.get(token.key)
        return bool(names) and is_unknown_name(token, names or ())

    # Comparisons

    def _passes(self, guard: Guard) -> bool:
        """Whether what an event never changes is as a comparison asks, which is made once."""
        passes = self.guarded.get(guard)
        if passes is None:
            key, operator, value, prefix = guard
            wanted = pattern(value, key, ignore_case="i" in prefix)
            admitted = wanted.admits(self.fixed[key], self.budget) is not wanted.negated
            passes = self.guarded[guard] = admitted is (operator == "==")
        return passes

    def _compare(self, token: Token, text: str | None) -> Truth:
        """Compare a value, None where it is not known, with what a token asks for."""
        if text is None:
            return None
        wanted = pattern(token.value, token.key, ignore_case="i" in token.prefix)
        return (wanted.admits(text, self.budget) is not wanted.negated) is (token.operator == "==")

    def _compare_any(self, token: Token, values: Mapping[str, bool]) -> Truth:
        """Compare with a set of tags or links, each there for certain or not."""
        wanted = pattern(token.value, ignore_case="i" in token.prefix)
        found = (token.operator == "==") is not wanted.negated
        self.budget.spend(len(values))
        certain = [sure for value, sure in values.items() if wanted.admits(value, self.budget)]
        if not certain:
            return not found
        return found if any(certain) else None

    def _holds(self, token: Token) -> Truth:
        try:
            return self._condition(token)
        except TooLongError:
            return False

    def _condition(self, token: Token) -> Truth:
        key = token.key
        if key in FIXED_KEYS:
            return True  # a guard that passed
        if key == "ENV":
            return self._compare(token, self.property(token.attribute or ""))
        if key == "ATTR":
            return self._compare_attribute(token, self.device)
        if key == "TAG":
            return self._compare_any(token, self._tags_seen())
        if key == "SYMLINK":
            return self._compare_any(token, self.outcome.links)
        if key == "NAME":
            return self._compare(token, None if NAMES & self.useful else "")
        if key == "TEST":
            return self._test(token)
        if key == "CONST" and token.attribute == "arch":
            return self._compare(token, self.machine.architecture or None)
        if key == "PROGRAM":
            self.result = None
        elif key == "RESULT":
            return self._compare(token, self.result)
        elif key == "IMPORT":
            return self._import(token)
        return None  # SYSCTL, CONST{virt}, PROGRAM: only the machine knows

    def _parents_match(self, rule: Rule) -> Truth:
        """Find the device or the first parent that satisfies every parent comparison of a line."""
        tokens = [token for token in rule.ordered if token.key in PARENT_KEYS]
        undecided: Device | None = None
        for device in self.device.lineage():
            truths = [self._parent_condition(token, device) for token in tokens]
            if all(truths):
                self.parent, self.parent_sure = device, undecided is None
                return True
            if undecided is None and False not in truths:
                undecided = device
        self.parent, self.parent_sure = undecided, undecided is None
        return None if undecided else False

    def _parent_condition(self, token: Token, device: Device) -> Truth:
        self.budget.spend(1)
        if token.key == "ATTRS":
            return self._compare_attribute(token, device)
        if token.key == "KERNELS":
            return self._compare(token, device.kernel)
        if token.key == "SUBSYSTEMS":
            return self._compare(token, device.subsystem)
        if token.key == "DRIVERS":
            return self._compare(token, device.driver)
        tags = self._tags_seen() if device is self.device else dict.fromkeys(device.tags, True)
        return self._compare_any(token, tags)

    def _tags_seen(self) -> dict[str, bool]:
        self.budget.spend(len(self.removed_tags) + len(self.outcome.tags))
        return {**self.removed_tags, **self.outcome.tags}

    def _compare_attribute(self, token: Token, device: Device) -> Truth:
        name = self.substitute(token.attribute or "", NAME_LIMIT)
        if name is None or name.startswith("["):
            return None
        value = device.attributes.get(name)
        if value is None:
            return False if device.complete else None  # whatever the operator
        if token.value and not token.value[-1].isspace():
            value = value.rstrip()
        return self._compare(token, value)

    def _test(self, token: Token) -> Truth:
        path = self.substitute(token.value, PATH_LIMIT)
        if path is None or path.startswith("["):
            return None
        found = self.machine.exists(path) if path.startswith("/") else self._own_file_exists(path)
        if found is None or (found and token.attribute):
            return None
        return found is (token.operator == "==")

    def _own_file_exists(self, name: str) -> Truth:
        return True if name in self.device.attributes else (False if self.device.complete else None)

    def _import(self, token: Token) -> Truth:
        """Note which properties an IMPORT may set; whether it succeeds is not known, but for a parent's."""
        kind = token.attribute
        if kind in ("db", "cmdline"):
            self.forget_properties(token.value)
        elif kind == "parent":
            self.forget_properties(self.substitute(token.value, PATH_LIMIT) or "*")
            return (self.device.parent is not None) is (token.operator != "!=")
        elif kind == "builtin" and not token.value.startswith(("hwdb", "net_setup_link")):
            self.forget_properties("ID_*")
        else:
            self.forget_properties("*")
        return None

    # Assignments

    def _assign_all(self, path: str, rule: Rule, doubt: str) -> None:
        for token in rule.ordered:
            if token.condition:
                continue
            assign = _ASSIGNERS.get(token.key)
            if assign is None:
                continue
            try:
                value = self.substitute(token.value, _LIMITS.get(token.key, NAME_LIMIT))
            except TooLongError:
                continue
            why = doubt or ("" if value is not None else f"what {token.value} stands for")
            known = token.value if value is None else value
            assign(self, token, Assignment(known, path, rule.line_of(token), why))

    def _assign_mode(self, token: Token, new: Assignment) -> None:
        usable = bool(new.doubt) or parse_mode(new.value) is not None
        self.outcome.mode.assign(new, usable=usable, final=token.operator == ":=")

    def _assign_owner(self, token: Token, new: Assignment) -> None:
        slot = self.outcome.owner if token.key == "OWNER" else self.outcome.group
        slot.assign(new, usable=not self._names_nobody(token), final=token.operator == ":=")

    def _assign_tag(self, token: Token, new: Assignment) -> None:
        tags = self.outcome.tags
        if token.operator in ("=", ":="):
            self._clear(tags, new.doubt)
            self._clear(self.removed_tags, new.doubt)
        if token.operator == "-=":
            if new.value in tags:
                self.removed_tags[new.value] = tags[new.value] = False
            if not new.doubt:
                tags.pop(new.value, None)
        elif new.value.replace("-", "a").replace("_", "a").isalnum() and new.value.isascii():
            tags[new.value] = tags.get(new.value, False) or not new.doubt

    def _assign_link(self, token: Token, new: Assignment) -> None:
        if not self.device.node:
            return
        if token.operator in ("=", ":="):
            self._clear(self.outcome.links, new.doubt)
        for link in new.value.split():
            self.outcome.links[link] = self.outcome.links.get(link, False) or not new.doubt

    def _assign_property(self, token: Token, new: Assignment) -> None:
        name, properties = token.attribute or "", self.outcome.properties
        before = self.property(name)
        value: str | None = new.value
        if token.operator == "+=":
            if not new.value:
                return
            value = None if before is None else f"{before} {new.value}".strip()
        if value is not None and len(value) >= NAME_LIMIT:
            return
        properties[name] = value if not new.doubt or value == before else None

    def _assign_run(self, token: Token, new: Assignment) -> None:
        builtin = token.attribute == "builtin"
        if self.run_final:
            self._drop([Command(new.value, new.path, new.line, new.doubt, builtin)], self.run_decider)
            return
        doubt = new.doubt or ("an earlier := that is undecided" if self.run_final is None else "")
        if token.operator in ("=", ":="):
            self._take_away_commands(new.path, new.line, doubt)
        if token.operator == ":=":
            self.run_final, self.run_decider = (None if doubt else True), f"{new.path}:{new.line}"
        self.outcome.run.append(Command(new.value, new.path, new.line, doubt, builtin))

    def _take_away_commands(self, path: str, line: int, doubt: str) -> None:
        commands = self.outcome.run
        self.budget.spend(len(commands))
        if doubt:
            self.outcome.run = [c._replace(doubt=c.doubt or f"not: {doubt}") for c in commands]
        else:
            self._drop(commands, f"{path}:{line}")
            self.outcome.run = []

    def _drop(self, commands: list[Command], decider: str) -> None:
        self.outcome.dropped += [command._replace(doubt=f"taken away by {decider}") for command in commands]

    def _clear(self, values: dict[str, bool], doubt: str) -> None:
        self.budget.spend(len(values))
        if doubt:
            values.update(dict.fromkeys(values, False))
        else:
            values.clear()


_ASSIGNERS: dict[str, Callable[[_Event, Token, Assignment], None]] = {
    "MODE": _Event._assign_mode,
    "OWNER": _Event._assign_owner,
    "GROUP": _Event._assign_owner,
    "TAG": _Event._assign_tag,
    "ENV": _Event._assign_property,
    "SYMLINK": _Event._assign_link,
    "RUN": _Event._assign_run,
}
_LIMITS = {"TAG": PATH_LIMIT, "SYMLINK": PATH_LIMIT, "RUN": LINE_LIMIT}
