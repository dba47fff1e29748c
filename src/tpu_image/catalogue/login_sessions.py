"""How users get a session: the PAM services that log in, and whether sshd uses PAM at all."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import NamedTuple

from tpu_image.catalogue.requirement import Evidence
from tpu_image.formats import pam, sshd_config
from tpu_image.trees.base import Tree

PAM_DIRECTORIES = ("/etc/pam.d", "/usr/lib/pam.d", "/usr/etc/pam.d")
"""Where a service's file is looked for, the first wins (pam.d(5), with the vendor directories in use)."""

LOGIN_SERVICES = ("login", "remote", "sshd", "su", "su-l", "systemd-user")
"""Services that open sessions in which a person or a user's own service runs programs."""

SSHD = "/usr/sbin/sshd"
SSHD_CONFIG = "/etc/ssh/sshd_config"
FILE_LIMIT = 64
"""Files read for one service at most: files may include one another without end."""


class Call(NamedTuple):
    """A module that a service calls for its sessions; ``level`` counts the substacks that it is in."""

    path: str
    rule: pam.Rule
    level: int


class LoginService(NamedTuple):
    """A PAM service that is configured, and the line that calls pam_limits for its sessions.

    ``skipped_by`` is a line before it after which PAM may go on behind it, or does so always.
    """

    name: str
    path: str
    limits_path: str = ""
    limits_rule: pam.Rule | None = None
    skipped_by: Call | None = None
    always_skipped: bool = False

    @property
    def limits_file(self) -> str:
        """The one file that pam_limits is told to read instead of the usual ones; mostly empty."""
        arguments = self.limits_rule.arguments if self.limits_rule else ()
        return next((a.removeprefix("conf=") for a in arguments if a.startswith("conf=")), "")


def login_services(tree: Tree) -> list[LoginService]:
    """Find the login services that a tree has, each with its call of pam_limits if there is one."""
    services = []
    for name in LOGIN_SERVICES:
        path = _service_path(tree, name)
        if path:
            services.append(_login_service(name, path, list(_session_calls(tree, path, set()))))
    return services


def _login_service(name: str, path: str, calls: list[Call]) -> LoginService:
    """Judge a service by its calls: of several of pam_limits, by the one that is skipped least."""
    found = [
        LoginService(name, path, call.path, call.rule, *_skipped(calls, index))
        for index, call in enumerate(calls)
        if posixpath.basename(call.rule.module) in ("pam_limits.so", "pam_limits")
    ]
    found.sort(key=lambda service: (service.always_skipped, service.skipped_by is not None))
    return found[0] if found else LoginService(name, path)


def _skipped(calls: list[Call], index: int) -> tuple[Call | None, bool]:
    """Find the call after which PAM may leave out the one with this index, and whether it always does."""
    doubtful: Call | None = None
    for position, call in enumerate(calls[:index]):
        skips = {index < _next_call(calls, position, action) for action in call.rule.actions}
        if skips == {True}:
            return call, True
        if True in skips:
            doubtful = doubtful or call
    return doubtful, False


def _next_call(calls: list[Call], position: int, action: str) -> int:
    """Give the index of the call that an action leads to; a substack counts as one (libpam, pam_dispatch.c)."""
    level, following = calls[position].level, position + 1
    if action == "done":
        while following < len(calls) and calls[following].level >= max(level, 1):
            following += 1
        return following if level else len(calls)
    for _ in range(min(int(action), len(calls)) if action.isdecimal() else 0):
        if following == len(calls) or calls[following].level < level:
            break
        following += 1
        while following < len(calls) and calls[following].level > level:
            following += 1
    return following


def _service_path(tree: Tree, name: str) -> str:
    paths = [posixpath.join(directory, name) for directory in PAM_DIRECTORIES]
    return next((path for path in paths if tree.is_file(path)), "")


def _session_calls(tree: Tree, path: str, seen: set[str], level: int = 0) -> Iterator[Call]:
    """Yield the session rules of a file and of those it includes, each file once."""
    if path in seen or len(seen) >= FILE_LIMIT:
        return
    seen.add(path)
    for rule in pam.parse_rules(tree.read_text_if_present(path) or ""):
        if rule.kind not in ("session", pam.INCLUDE):
            continue
        if not rule.includes or rule.control == "substack":
            yield Call(path, rule, level)
        if not rule.includes:
            continue
        included = rule.module if rule.module.startswith("/") else _service_path(tree, rule.module)
        if included:
            yield from _session_calls(tree, included, seen, level + (rule.control == "substack"))


def sshd_without_pam(tree: Tree) -> Evidence | None:
    """Say where sshd is told not to use PAM; None where it uses it or is not installed.

    The first ``UsePAM`` counts, and OpenSSH's own default is ``no`` (sshd_config(5)).
    """
    if not tree.exists(SSHD) or not tree.is_file(SSHD_CONFIG):
        return None
    for path, directive in _sshd_directives(tree, SSHD_CONFIG, set()):
        if directive.keyword == "usepam" and directive.arguments:
            value = directive.arguments[0].lower()
            uses = value in ("yes", "true")
            return None if uses else Evidence(path, directive.line, f"UsePAM {value}", "UsePAM yes")
    return Evidence(SSHD_CONFIG, 0, "no UsePAM line, which means no", "UsePAM yes")


def _sshd_directives(tree: Tree, path: str, seen: set[str]) -> Iterator[tuple[str, sshd_config.Directive]]:
    """Yield the directives of a file and of those it includes, each file once, with their paths."""
    if path in seen or len(seen) >= FILE_LIMIT:
        return
    seen.add(path)
    for directive in sshd_config.parse_directives(tree.read_text_if_present(path) or ""):
        if directive.keyword != "include":
            yield path, directive
            continue
        for pattern in directive.arguments:
            folder, name = posixpath.split(posixpath.join(posixpath.dirname(SSHD_CONFIG), pattern))
            for included in tree.files(folder, name):
                yield from _sshd_directives(tree, included, seen)
