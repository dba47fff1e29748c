"""The units of a tree as the system manager would load them: found, merged, and started at boot or not.

Sources: systemd.unit(5); for aliases, masks and linked units systemd's ``src/basic/unit-file.c``.
"""

from __future__ import annotations

import functools
import posixpath
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from tpu_image.formats import FormatError
from tpu_image.formats.systemd_command import Command, parse_commands, split_words
from tpu_image.formats.systemd_unit import (
    CONFIGURATION_DIRECTORIES,
    UNIT_DIRECTORIES,
    Configuration,
    Located,
    UnitFile,
    order_by_name,
    related_directories,
    split_name,
    template_of,
    unit_type,
)
from tpu_image.trees.base import Kind, NotAFileError, NotFoundError, Tree, TreeError

ALIAS_LIMIT = 8
"""Alias links followed from one name (``FOLLOW_MAX`` in systemd's ``src/basic/unit-file.c``)."""
UNIT_LIMIT = 4096
"""Units looked at when following what starts at boot: templates could name instances without end."""

STARTING_KEYS = ("Requires", "Wants", "BindsTo", "Upholds")
"""Settings of ``[Unit]`` that start what they name together with the unit."""
STARTING_SUFFIXES = (".wants", ".requires", ".upholds")
"""Directories whose links do the same."""


class GeneratedLink(NamedTuple):
    """A ``.wants`` link that a generator makes at boot, so that no file of an image shows it."""

    generator: str
    unit: str
    wants: str
    disabled_by: str


GENERATED_LINKS = (
    GeneratedLink(
        "/usr/lib/systemd/system-generators/cloud-init-generator",
        "multi-user.target",
        "cloud-init.target",
        "/etc/cloud/cloud-init.disabled",
    ),
)


class Unit(NamedTuple):
    """A unit with its drop-ins.

    ``name`` is its own, aliases followed; ``path`` its main file; ``problem`` says why systemd does not load
    it, empty where it does.
    """

    name: str
    path: str
    masked: bool = False
    problem: str = ""
    configuration: Configuration = Configuration(())

    @property
    def loadable(self) -> bool:
        """Whether systemd could start it."""
        return not self.masked and not self.problem

    def commands(self, key: str = "ExecStart") -> list[tuple[Command, Located]]:
        """Commands of a service, each with where it stands; lines that systemd ignores are left out."""
        found: list[tuple[Command, Located]] = []
        for located in self.configuration.values("Service", key):
            try:
                found.extend((command, located) for command in parse_commands(located.value))
            except FormatError:
                continue
        return found


def units_of(tree: Tree) -> Units:
    """Give the units of a tree, read once for all requirements and anew after a change of the tree."""
    return tree.derive(Units)


class Units:
    """The system manager's units of one tree. Reads lazily and remembers: :func:`units_of` shares one."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._units: dict[str, Unit | None] = {}
        self._files: dict[str, UnitFile] = {}
        self._texts: dict[str, str] = {}
        self._reached: dict[str, None] = {}
        self._to_visit = deque(["default.target"])

    @functools.cached_property
    def _directories(self) -> list[str]:
        return list(dict.fromkeys(self._tree.resolve(directory) for directory in UNIT_DIRECTORIES))

    @functools.cached_property
    def _places(self) -> dict[str, list[str]]:
        """Name of an entry of a unit directory to its paths, the first wins."""
        places: dict[str, list[str]] = {}
        for directory in self._directories:
            for name in self._tree.names(directory):
                places.setdefault(name, []).append(posixpath.join(directory, name))
        return places

    @functools.cached_property
    def _definitions(self) -> dict[str, str]:
        """Unit name to the path of its file, or to the name that it is an alias of."""
        found = {name: self._define(name) for name in self._places if unit_type(name)}
        return {name: definition for name, definition in found.items() if definition}

    def _define(self, name: str) -> str | None:
        for path in self._places[name]:
            entry = self._tree.lstat_canonical(path)
            if entry is None:
                continue
            if entry.kind is not Kind.SYMLINK:
                return path
            target = posixpath.join(posixpath.dirname(path), entry.target)
            if self._tree.resolve(posixpath.dirname(target)) not in self._directories:
                return path
            alias_of = posixpath.basename(target)
            if alias_of != name and _may_alias(name, alias_of):
                return alias_of
        return None

    @functools.cached_property
    def _aliases(self) -> dict[str, list[str]]:
        """Name of each unit's main file to its aliases."""
        aliases: dict[str, list[str]] = {}
        for name, definition in self._definitions.items():
            path = None if definition.startswith("/") else self._follow_aliases(name)
            if path is not None:
                own = _instance_of(posixpath.basename(path), name)
                aliases.setdefault(own, []).append(name)
        return aliases

    def unit(self, name: str) -> Unit | None:
        """Load a unit by its name or an alias; None where no file defines it."""
        if name not in self._units:
            is_defined = unit_type(name) and (name in self._places or template_of(name) in self._places)
            found = self._find_fragment(name) if is_defined else None
            self._units[name] = None if found is None else self._load(*found)
        return self._units[name]

    def names(self) -> list[str]:
        """Names of all units that have a file of their own or are named by a ``.wants`` link, sorted."""
        names = {name for name in self._places if unit_type(name)}
        for entry, places in self._places.items():
            if entry.endswith(STARTING_SUFFIXES):
                for place in places:
                    names.update(name for name in self._tree.names(place) if unit_type(name))
        return sorted(names)

    def services_running(
        self, predicate: Callable[[Command], bool], *, mentioning: Sequence[str] = ()
    ) -> list[tuple[Unit, Command, Located]]:
        """Find loadable services with a start command that satisfies the predicate, in order of their names.

        ``mentioning`` spares time: a unit is parsed only where one of its files contains one of the texts.
        """
        found: list[tuple[Unit, Command, Located]] = []
        for name in self.names():
            is_template = split_name(name)[1] == ""
            if not name.endswith(".service") or is_template or not self._mentions(name, mentioning):
                continue
            unit = self.unit(name)
            if unit is None or not unit.loadable or any(unit.name == known.name for known, *_ in found):
                continue
            for key in ("ExecStartPre", "ExecStart", "ExecStartPost"):
                found += [(unit, c, located) for c, located in unit.commands(key) if predicate(c)]
        return found

    def _mentions(self, name: str, texts: Sequence[str]) -> bool:
        if not texts:
            return True
        if name not in self._texts:
            fragment = self._find_fragment(name)
            paths = () if fragment is None else (fragment[1], *self._drop_ins(fragment[0]))
            self._texts[name] = "\n".join(_text(self._tree, path) for path in paths)
        return any(text in self._texts[name] for text in texts)

    def service_defaults(self) -> Configuration:
        """What ``service.d`` sets for services of whatever name."""
        directories = [f"{directory}/service.d" for directory in UNIT_DIRECTORIES]
        return self._configuration(order_by_name(_drop_in_files(self._tree, directories)))

    def starts_at_boot(self, name: str) -> bool:
        """Whether the default target pulls the unit in, by links or settings, over any number of units."""
        unit = self.unit(name)
        if unit is None or not unit.loadable:
            return False
        return unit.name in self._reached or any(reached == unit.name for reached in self._visit())

    def _visit(self) -> Iterator[str]:
        """Go on walking from the default target; yields each loadable unit once."""
        while self._to_visit and len(self._reached) < UNIT_LIMIT:
            unit = self.unit(self._to_visit.popleft())
            if unit is None or not unit.loadable or unit.name in self._reached:
                continue
            self._reached[unit.name] = None
            self._to_visit.extend(self._started_with(unit))
            yield unit.name

    def _started_with(self, unit: Unit) -> list[str]:
        """Names of the units that start when this one does."""
        names: list[str] = []
        for key in STARTING_KEYS:
            for located in unit.configuration.all("Unit", key):
                names += _words(located.value)
        for located in unit.configuration.all("Service", "Sockets"):
            names += _words(located.value)
        instance = split_name(unit.name)[1] or ""
        names = [name.replace("%i", instance).replace("%I", instance) for name in names]
        for suffix in STARTING_SUFFIXES:
            names += self._links(unit.name, suffix)
        for link in GENERATED_LINKS:
            generates = link.unit == unit.name and self._tree.is_file(link.generator)
            if generates and not self._tree.exists(link.disabled_by):
                names.append(link.wants)
        return names

    def _links(self, name: str, suffix: str) -> list[str]:
        """Names that the links of ``NAME.wants`` and the like stand for."""
        paths: list[str] = []
        for directory in self._extensions(name, suffix):
            paths += [posixpath.join(directory, entry) for entry in self._tree.names(directory)]
        links = []
        for path in order_by_name(paths):
            entry = self._tree.lstat(path)
            if entry is not None and entry.kind is Kind.SYMLINK and not self._is_mask(path):
                links.append(_instance_of(posixpath.basename(path), name))
        return links

    def _find_fragment(self, name: str) -> tuple[str, str] | None:
        """Give the unit's own name, aliases followed, and the path of its main file."""
        path = self._follow_aliases(name) or self._follow_aliases(template_of(name))
        if path is None:
            return None
        own_name = _instance_of(posixpath.basename(path), name)
        is_other_unit = self._follow_aliases(own_name) not in (None, path)
        return (name if is_other_unit else own_name), path

    def _follow_aliases(self, name: str) -> str | None:
        found = self._definitions.get(name)
        for _ in range(ALIAS_LIMIT):
            if found is None or found.startswith("/"):
                return found
            found = self._definitions.get(found) or self._definitions.get(template_of(found))
        return None

    def _load(self, name: str, path: str) -> Unit:
        try:
            if self._is_mask(path):
                return Unit(name, path, masked=True)
            error = self._file(path).error
            if error:
                return Unit(name, path, problem=str(error))
            return Unit(name, path, configuration=self._configuration([path, *self._drop_ins(name)]))
        except TreeError as error:
            return Unit(name, path, problem=error.reason)

    def _drop_ins(self, name: str) -> list[str]:
        return order_by_name(_drop_in_files(self._tree, self._extensions(name, ".d")))

    def _extensions(self, name: str, suffix: str) -> list[str]:
        """Directories that extend a unit: its own, those of its aliases, the one of its type."""
        directories: list[str] = []
        for own in (name, *self._aliases_of(name)):
            related = related_directories(own, suffix)
            found = [path for entry in related for path in self._places.get(entry, ())]
            directories += sorted(found, key=lambda path: self._directories.index(posixpath.dirname(path)))
        return directories + self._places.get(unit_type(name) + suffix, [])

    def _aliases_of(self, name: str) -> list[str]:
        """Other names of a unit; an instance has those of its template, where nothing else defines them."""
        aliases = list(self._aliases.get(name, ()))
        template = template_of(name)
        for alias in self._aliases.get(template, ()):
            instance = _instance_of(alias, name)
            found = self._follow_aliases(instance)
            if found is None or posixpath.basename(found) == template:
                aliases.append(instance)
        return aliases

    def _configuration(self, paths: Sequence[str]) -> Configuration:
        return Configuration([(path, self._file(path)) for path in paths])

    def _file(self, path: str) -> UnitFile:
        if path not in self._files:
            self._files[path] = UnitFile(_text(self._tree, path))
        return self._files[path]

    def _is_mask(self, path: str) -> bool:
        """Whether a path leads to /dev/null, another device, or an empty file."""
        entry = self._tree.stat(path)
        return _is_null(self._tree, path) or (
            entry is not None and entry.kind is Kind.FILE and not entry.size
        )


def _is_null(tree: Tree, path: str) -> bool:
    """Whether a path leads to a device; an image has no nodes, so the name of /dev/null counts as one."""
    entry = tree.stat(path)
    if entry is None:
        return tree.resolve(path) == "/dev/null"
    return entry.kind in (Kind.CHARACTER_DEVICE, Kind.BLOCK_DEVICE)


def _text(tree: Tree, path: str) -> str:
    """Read a unit file or drop-in; one that is a link to /dev/null or to nothing is empty."""
    try:
        return tree.read_text(path)
    except NotFoundError:
        return ""
    except NotAFileError:
        if _is_null(tree, path):
            return ""
        raise


def _drop_in_files(tree: Tree, directories: Sequence[str]) -> list[str]:
    """Paths of the drop-ins of directories; links count whatever they lead to, since they hide others."""
    paths = [posixpath.join(d, name) for d in directories for name in tree.names(d, "[!.]*.conf")]
    kinds = (Kind.FILE, Kind.SYMLINK)
    return [path for path in paths if (entry := tree.lstat(path)) is not None and entry.kind in kinds]


def _instance_of(name: str, other: str) -> str:
    """Give a template the instance of another unit; a name that is no template stays as it is."""
    prefix, instance, kind = split_name(name)
    return f"{prefix}@{split_name(other)[1] or ''}.{kind}" if instance == "" else name


def _words(value: str) -> list[str]:
    try:
        return [word for word in split_words(value) if word]
    except FormatError:
        return []


def _may_alias(name: str, target: str) -> bool:
    """Whether systemd accepts a link of one name to the other (systemd.unit(5), "Unit File Aliases")."""
    _, instance, kind = split_name(name)
    _, target_instance, target_kind = split_name(target)
    if not unit_type(target) or kind != target_kind:
        return False
    if target_instance == "":
        return instance is not None
    return instance == target_instance


def manager_configuration(tree: Tree) -> Configuration:
    """Read ``system.conf`` and its drop-ins as the system manager does (systemd-system.conf(5))."""
    main = [f"{directory}/system.conf" for directory in CONFIGURATION_DIRECTORIES]
    present = [path for path in main if tree.lstat(path) is not None]
    drop_ins = _drop_in_files(tree, [f"{path}.d" for path in main])
    paths = [*present[:1], *order_by_name(drop_ins)]
    return Configuration([(path, UnitFile(_text(tree, path))) for path in paths])
