"""Drop-ins that raise what is too low, late enough to be the last word, and hold nothing else."""

from __future__ import annotations

import posixpath
from collections.abc import Callable

from tpu_image.catalogue.drop_ins import late_names, write_late
from tpu_image.catalogue.limits_in_effect import (
    HALVES,
    LIMITS_DIRECTORY,
    ORDINARY,
    ROOT,
    Item,
    Services,
    Sessions,
)
from tpu_image.formats.limits import LimitsFile, Login, format_value
from tpu_image.formats.resource_limits import Limit, format_setting
from tpu_image.formats.systemd_unit import UnitFile
from tpu_image.trees.base import Kind, Tree
from tpu_image.trees.overlay import Overlay

HEADER = "# Written by tpu-image: Cloud TPU needs these limits. Later files win.\n"
UNIT_DIRECTORY = "/etc/systemd/system"
MANAGER_DIRECTORY = "/etc/systemd/system.conf.d"
RUNTIME_NAME = "99-tpu-image-runtime.conf"
"""Drop-in of a container runtime; one of the same name in ``service.d`` would be hidden by it."""


def plan_sessions(overlay: Overlay, item: Item) -> None:
    """Raise the limit for users and for root through a file of limits.d."""
    for login, domain in ((ORDINARY, "*"), (ROOT, "root")):

        def suffices(tree: Tree, login: Login = login) -> bool:
            return item.suffices(tree.derive(Sessions).granted(login, item).limit)

        def write(trial: Overlay, path: str, login: Login = login, domain: str = domain) -> None:
            _add_lines(trial, path, item, login, domain)

        names = late_names(overlay.names(LIMITS_DIRECTORY, "*.conf"))
        write_late(overlay, LIMITS_DIRECTORY, names, suffices, write)


def _add_lines(trial: Overlay, path: str, item: Item, login: Login, domain: str) -> None:
    """Add the hard and the soft line where each is too low; soft last, since hard caps it.

    A half that no line decides and that is high enough all the same gets no line: it would cap those who
    have more.
    """
    for half in reversed(HALVES):
        value, decided_by = trial.derive(Sessions).granted(login, item).half(half)
        if value >= item.needed:
            continue
        # A range of ids that takes in everybody outranks *, so the line must name the same range.
        winning = decided_by.entry.domain if domain == "*" and decided_by else domain
        file = LimitsFile(_own_text(trial, path))
        trial.write(path, file.with_line(winning, half, item.name, format_value(item.name, item.needed)).text)


def plan_services(overlay: Overlay, item: Item) -> None:
    """Raise the default of services where it is decided: for the manager, or for all services by type."""
    services = overlay.derive(Services)
    granted = services.default(item)

    def suffices(tree: Tree) -> bool:
        return item.suffices(tree.derive(Services).default(item).limit)

    if granted.by_type:
        directory, section, key = f"{UNIT_DIRECTORY}/service.d", "Service", f"Limit{item.setting}"
        files = services.by_type.files
    else:
        directory, section, key = MANAGER_DIRECTORY, "Manager", f"DefaultLimit{item.setting}"
        files = services.manager.files
    write = _setting_writer(section, key, _raised(granted.limit, item))
    names = late_names(posixpath.basename(path) for path, _ in files)
    write_late(overlay, directory, names, suffices, write)


def plan_runtimes(overlay: Overlay, item: Item) -> None:
    """Raise the limit of docker and containerd where their own units set a lower one."""
    for name, own, configuration in list(overlay.derive(Services).runtimes(item)):

        def suffices(tree: Tree, name: str = name) -> bool:
            limits = {unit: limit.limit for unit, limit, _ in tree.derive(Services).runtimes(item)}
            return item.suffices(limits[name])

        others = (posixpath.basename(path) for path, _ in configuration.files[1:])
        write = _setting_writer("Service", f"Limit{item.setting}", _raised(own.limit, item))
        write_late(overlay, f"{UNIT_DIRECTORY}/{name}.d", late_names(others, RUNTIME_NAME), suffices, write)


def _own_text(trial: Overlay, path: str) -> str:
    """Text of a file of ours to go on from; a link in its place (to /dev/null, as a mask) makes way."""
    entry = trial.lstat(path)
    if entry is not None and entry.kind is Kind.SYMLINK:
        trial.remove(path)
    return trial.read_text_if_present(path) or HEADER


def _raised(limit: Limit, item: Item) -> str:
    """What to write over a limit that is too low in one half, without lowering the other."""
    return format_setting(Limit(max(limit.soft, item.service.soft), max(limit.hard, item.service.hard)))


def _setting_writer(section: str, key: str, value: str) -> Callable[[Overlay, str], None]:
    def write(trial: Overlay, path: str) -> None:
        file = UnitFile(_own_text(trial, path))
        trial.write(path, file.with_setting(section, key, value).text)

    return write
