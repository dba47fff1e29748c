"""Which limits sessions, services and containers of a tree get, and the line that decides each."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

from tpu_image.catalogue.distribution import distribution_of
from tpu_image.catalogue.systemd import Unit, manager_configuration, units_of
from tpu_image.formats.limits import (
    Effective,
    Entry,
    LimitsFile,
    Login,
    effective,
    order,
    parse_range,
    specificity,
)
from tpu_image.formats.resource_limits import UNLIMITED, Limit, describe, parse_setting
from tpu_image.formats.systemd_unit import UNIT_DIRECTORIES, Configuration, Located, order_by_name
from tpu_image.trees.base import Tree

LIMITS_CONF = "/etc/security/limits.conf"
LIMITS_DIRECTORY = "/etc/security/limits.d"

ORDINARY = Login("", uid=1000, gid=1000)
"""A user whom no line names: the first id that login.defs(5) gives to people (``UID_MIN``)."""
ROOT = Login("root", uid=0, gid=0, groups=("root",))

RUNTIMES = ("docker.service", "containerd.service")
"""Services whose limits containers inherit."""

HALVES = ("soft", "hard")
MIB = 1024 * 1024


class Item(NamedTuple):
    """A limit and what a TPU machine needs of it. Values are in the kernel's units."""

    name: str
    setting: str
    """Its name in systemd settings, behind ``Limit`` or ``DefaultLimit``."""
    needed: int
    service: Limit
    """What services are given at least."""
    service_default: Limit
    """What services have where nothing is configured (systemd-system.conf(5); kernel: ``MLOCK_LIMIT``)."""
    first_process: Limit
    """What systemd sets for itself at least (``src/core/main.c``). Debian's pam_limits starts from it."""

    @property
    def expectation(self) -> str:
        """What is needed, as evidence and remedies say it."""
        return "unlimited" if self.needed == UNLIMITED else f"at least {self.needed}"

    def suffices(self, limit: Limit) -> bool:
        """Whether both halves are high enough."""
        return limit.soft >= self.needed and limit.hard >= self.needed

    def show(self, limit: Limit) -> str:
        """Say a limit in words: ``8 MiB``, ``1024 soft, 524288 hard``."""
        soft, hard = describe(self.name, limit.soft), describe(self.name, limit.hard)
        return soft if soft == hard else f"{soft} soft, {hard} hard"


MEMLOCK = Item(
    "memlock",
    "MEMLOCK",
    needed=UNLIMITED,
    service=Limit(UNLIMITED, UNLIMITED),
    service_default=Limit(8 * MIB, 8 * MIB),
    first_process=Limit(64 * MIB, 64 * MIB),
)
NOFILE = Item(
    "nofile",
    "NOFILE",
    needed=100_000,
    service=Limit(100_000, 524_288),
    service_default=Limit(1024, 524_288),
    first_process=Limit(1024, 524_288),
)


OPEN_FILES_MOST = 1024 * 1024
"""``fs.nr_open`` where nothing sets it (kernel: ``sysctl_nr_open`` in fs/file.c): no limit may be higher."""

SYSCTL_DIRECTORIES = ("/etc", "/run", "/usr/local/lib", "/usr/lib", "/lib")
"""Where ``sysctl.d`` is looked for, the first of equal names wins (sysctl.d(5))."""


def most_open_files(tree: Tree) -> int | None:
    """Give what ``fs.nr_open`` will be; None where systemd raises it as far as it goes.

    systemd does so unless it is built as Debian and Ubuntu build it (``bump-proc-sys-fs-nr-open``).
    """
    paths = [path for d in SYSCTL_DIRECTORIES for path in tree.files(f"{d}/sysctl.d", "*.conf")]
    value = OPEN_FILES_MOST if distribution_of(tree).is_a("debian") else None
    for path in [*order_by_name(paths), "/etc/sysctl.conf"]:
        for line in (tree.read_text_if_present(path) or "").split("\n") if tree.is_file(path) else ():
            name, equals, written = line.partition("=")
            digits = written.strip()
            if equals and name.strip().lstrip("-").replace("/", ".") == "fs.nr_open" and digits.isdecimal():
                value = int(digits[:20])
    return value


class Granted(NamedTuple):
    """The limit that somebody gets, with what decides each half; None where nothing sets it."""

    limit: Limit
    soft: Effective | None = None
    hard: Effective | None = None
    freed_by: tuple[str, Entry] | None = None

    def half(self, name: str) -> tuple[int, Effective | None]:
        """Value and deciding line of ``soft`` or ``hard``."""
        return (self.limit.soft, self.soft) if name == "soft" else (self.limit.hard, self.hard)


class Sessions:
    """What pam_limits gives to logins; ``own_file`` is the one file it is told to read (``conf=``)."""

    def __init__(self, tree: Tree, own_file: str = "") -> None:
        drop_ins = [] if own_file else tree.files(LIMITS_DIRECTORY, "[!.]*.conf")
        paths = order(own_file or LIMITS_CONF, drop_ins)
        self.files = [(path, LimitsFile(tree.read_text_if_present(path) or "")) for path in paths]
        self._services = tree.derive(Services)
        self._is_debian = distribution_of(tree).is_a("debian")
        self.most_open_files = tree.derive(most_open_files)

    def granted(self, login: Login, item: Item) -> Granted:
        """Merge the files for a login; a half that they leave open is inherited."""
        session = effective(self.files, login, item.name, root_by_name_only=self._is_debian)
        inherited = self._inherited(item)
        soft = session.soft.value if session.soft else inherited.soft
        hard = session.hard.value if session.hard else inherited.hard
        return Granted(Limit(min(soft, hard), hard), session.soft, session.hard, session.freed_by)

    def _inherited(self, item: Item) -> Limit:
        """Debian's module falls back to the limits of process 1; others keep those of the calling service."""
        return item.first_process if self._is_debian else self._services.default(item).limit

    def singled_out(self, item: Item) -> Iterator[tuple[str, Granted]]:
        """Yield the users, groups and ids that lines name, other than all users and root."""
        domains = dict.fromkeys(
            entry.domain
            for _, file in self.files
            for entry in file.entries
            if entry.item == item.name or entry.value is None
        )
        for domain in domains:
            login = _representative(domain)
            if login is not None:
                yield domain, self.granted(login, item)


def _representative(domain: str) -> Login | None:
    """Somebody whom a domain names; None where it names everybody, nobody or root."""
    common = specificity(domain, ORDINARY, root_by_name_only=False)
    if common is not None or domain in ("*", "root") or domain.startswith("%"):
        return None
    bounds = parse_range(domain)
    if bounds is None:
        is_group = domain.startswith("@")
        name, groups = ("", (domain[1:],)) if is_group else (domain, ())
        return Login(name, ORDINARY.uid, ORDINARY.gid, groups)
    if domain.startswith("@"):
        return Login("", ORDINARY.uid, gid=bounds[0])
    return Login("", uid=bounds[0], gid=ORDINARY.gid) if bounds[0] else None


class ServiceLimit(NamedTuple):
    """The limit of services and the setting that decides it, None for systemd's own default."""

    limit: Limit
    decided_by: Located | None = None
    by_type: bool = False
    """Whether a drop-in for all services (``service.d``) decides, rather than the manager's default."""


class Services:
    """The limits of services of a tree."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._units = units_of(tree)

    @functools.cached_property
    def manager(self) -> Configuration:
        """The system manager's configuration."""
        return manager_configuration(self._tree)

    @functools.cached_property
    def by_type(self) -> Configuration:
        """The drop-ins for all services."""
        return self._units.service_defaults()

    def default(self, item: Item) -> ServiceLimit:
        """What a service gets that says nothing of its own."""
        found = _last_accepted(self.by_type, "Service", f"Limit{item.setting}", item)
        if found is not None:
            return ServiceLimit(*found, by_type=True)
        found = _last_accepted(self.manager, "Manager", f"DefaultLimit{item.setting}", item)
        return ServiceLimit(*found) if found is not None else ServiceLimit(item.service_default)

    def runtimes(self, item: Item) -> Iterator[tuple[str, ServiceLimit, Configuration]]:
        """Yield the container runtimes that set the limit themselves, with their configuration."""
        for name in RUNTIMES:
            unit = self.unit(name)
            if unit is None:
                continue
            own = _last_accepted(unit.configuration, "Service", f"Limit{item.setting}", item)
            if own is not None and own[1] != self.default(item).decided_by:
                yield unit.name, ServiceLimit(*own), unit.configuration

    def unit(self, name: str) -> Unit | None:
        """Load a unit; None where there is none, or systemd would not start it."""
        if not any(self._tree.lstat(f"{directory}/{name}") for directory in UNIT_DIRECTORIES):
            return None
        unit = self._units.unit(name)
        return unit if unit is not None and unit.loadable else None


def _last_accepted(
    configuration: Configuration, section: str, key: str, item: Item
) -> tuple[Limit, Located] | None:
    """The last assignment that systemd understands; it skips others, an empty one too."""
    for located in reversed(configuration.all(section, key)):
        limit = parse_setting(item.name, located.value)
        if limit is not None:
            return limit, located
    return None
