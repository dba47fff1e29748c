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


class LoginService(NamedTuple):
    """A PAM service that is configured, and the line that calls pam_limits for its sessions."""

    name: str
    path: str
    limits_path: str = ""
    limits_rule: pam.Rule | None = None

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
            found = next((c for c in _session_rules(tree, path, set()) if _is_pam_limits(c[1])), ("", None))
            services.append(LoginService(name, path, *found))
    return services


def _is_pam_limits(rule: pam.Rule) -> bool:
    return posixpath.basename(rule.module) in ("pam_limits.so", "pam_limits")


def _service_path(tree: Tree, name: str) -> str:
    paths = [posixpath.join(directory, name) for directory in PAM_DIRECTORIES]
    return next((path for path in paths if tree.is_file(path)), "")


def _session_rules(tree: Tree, path: str, seen: set[str]) -> Iterator[tuple[str, pam.Rule]]:
    """Yield the session rules of a file and of those it includes, each file once, with their paths."""
    if path in seen or len(seen) >= FILE_LIMIT:
        return
    seen.add(path)
    for rule in pam.parse_rules(tree.read_text_if_present(path) or ""):
        if rule.kind not in ("session", pam.INCLUDE):
            continue
        if not rule.includes:
            yield path, rule
            continue
        included = rule.module if rule.module.startswith("/") else _service_path(tree, rule.module)
        if included:
            yield from _session_rules(tree, included, seen)


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
