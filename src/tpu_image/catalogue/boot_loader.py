"""The boot loader of an image: its entries, what makes them, and which of them boots.

Read here: GRUB's grub.cfg and custom.cfg, entries by the Boot Loader Specification, GRUB's environment block,
the GRUB defaults and kernel-install's command line. Other boot loaders are only named.
"""

from __future__ import annotations

import fnmatch
import functools
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from tpu_image.catalogue import grub_files
from tpu_image.catalogue.requirement import Evidence
from tpu_image.formats import FormatError
from tpu_image.formats.grub_config import GrubConfig, LinuxLine
from tpu_image.formats.grub_defaults import GrubDefaults
from tpu_image.formats.kernel_cmdline import KernelCommandLine, Token
from tpu_image.trees.base import Tree

if TYPE_CHECKING:
    from tpu_image.formats.boot_loader_spec import BootLoaderEntry
    from tpu_image.formats.grub_environment import EnvironmentBlock

DEFAULTS = "/etc/default/grub"
DROP_INS = "/etc/default/grub.d"
KERNEL_INSTALL = "/etc/kernel/cmdline"

ENTRY_DIRECTORIES = ("/boot/loader/entries", "/boot/efi/loader/entries", "/efi/loader/entries")
_GRUB_MKCONFIG = tuple(f"/usr/{d}/{n}" for d in ("sbin", "bin") for n in ("grub-mkconfig", "grub2-mkconfig"))

# Files by which other boot loaders show, and their names.
_OTHER_LOADERS = (
    ("/boot/efi/EFI/Linux", "*.efi", "a unified kernel image"),
    ("/boot/EFI/Linux", "*.efi", "a unified kernel image"),
    ("/efi/EFI/Linux", "*.efi", "a unified kernel image"),
    ("/boot/loader", "loader.conf", "systemd-boot"),
    ("/boot/efi/loader", "loader.conf", "systemd-boot"),
    ("/efi/loader", "loader.conf", "systemd-boot"),
    ("/boot/efi/EFI/systemd", "*.efi", "systemd-boot"),
    ("/boot/extlinux", "extlinux.conf", "extlinux"),
    ("/boot/syslinux", "syslinux.cfg", "syslinux"),
    ("/boot", "refind_linux.conf", "rEFInd"),
    ("/boot", "limine.c*f*g*", "Limine"),
    ("/boot", "boot.scr", "U-Boot"),
    ("/etc", "lilo.conf", "LILO"),
)

_Parsed = TypeVar("_Parsed")

_VARIANTS_LIMIT = 8
"""Ways in which the variables of one entry are tried at most."""


class BootEntry(NamedTuple):
    """One kernel line that may boot; ``lines`` are the command lines that it can come to (mostly one)."""

    path: str
    line: int
    title: str
    boots: bool
    """Whether it, or the menu entry that it is in, is what boots when nobody chooses."""
    lines: tuple[KernelCommandLine, ...]
    kernel: str = ""
    """Path of the kernel on the file system that the boot loader reads."""


class _Holdings(NamedTuple):
    """The fields of :class:`BootLoader`; the mappings are from path to content."""

    configs: Mapping[str, GrubConfig]
    unread: tuple[Evidence, ...]
    """Lines of GRUB's configuration that take in what is not read here."""
    entry_files: Mapping[str, BootLoaderEntry]
    environment_path: str
    environment: EnvironmentBlock | None
    defaults: GrubDefaults
    loader_default: str
    """The pattern of entry names that systemd-boot's loader.conf makes the default."""
    kernel_install: KernelCommandLine | None
    has_grub: bool
    """Whether anything of GRUB is there: configuration, defaults or programs."""
    reads_drop_ins: bool
    """Whether grub-mkconfig reads :data:`DROP_INS`: Debian and Ubuntu patch that in."""
    shell_appends: bool
    """Whether the shell that grub-mkconfig runs in knows ``+=``: dash does not."""
    others: tuple[str, ...]
    """Names of other boot loaders that show."""


class BootLoader(_Holdings):
    """What a tree holds of a boot loader."""

    @property
    def has_defaults(self) -> bool:
        """Whether the GRUB defaults make the entries to come; they will where no boot loader shows yet."""
        return self.has_grub or not (self.entry_files or self.others)

    @property
    def variables(self) -> dict[str, str]:
        """What the environment block holds."""
        return dict(self.environment.variables) if self.environment else {}

    @functools.cached_property
    def entries(self) -> tuple[BootEntry, ...]:
        """Every kernel line of GRUB and of the Boot Loader Specification."""
        return (*self._grub_entries(), *self._specified_entries())

    def _grub_entries(self) -> Iterator[BootEntry]:
        for path, config in self.configs.items():
            default = config.default_entry(self.variables)
            for linux in config.linux_lines:
                entry = linux.entry
                title = entry.path if entry else f"function {linux.command.function or 'main'}"
                boots = entry is not None and entry is default and path.endswith("grub.cfg")
                lines = tuple(
                    KernelCommandLine.parse(linux.kernel_text(variables))
                    for variables in self.possible_variables(config, linux)
                )
                yield BootEntry(path, linux.line, title, boots, lines, linux.kernel)

    def possible_variables(self, config: GrubConfig, linux: LinuxLine) -> list[dict[str, str]]:
        """Give the values that the variables of a line can have, one mapping for each way to try."""
        return self.possible_values({name for word in linux.arguments for name in word.variables()}, config)

    def possible_values(self, names: set[str], *configs: GrubConfig) -> list[dict[str, str]]:
        """Give the values that variables can have: what the environment block or a ``set`` gives them."""
        known = self.variables
        values: dict[str, list[str]] = {}
        for name in names:
            found = [
                " ".join(setting.value.expand(known))
                for config in configs
                for setting in config.settings
                if setting.name == name
            ]
            values[name] = [known[name]] if known.get(name) else list(dict.fromkeys(found)) or [""]
        count = min(max((len(v) for v in values.values()), default=1), _VARIANTS_LIMIT)
        return [{name: v[i % len(v)] for name, v in values.items()} for i in range(count)]

    def _specified_entries(self) -> Iterator[BootEntry]:
        default = self._default_specified()
        for path, entry in self.entry_files.items():
            if not entry.get("linux"):
                continue
            options = entry.all("options")
            lines = tuple(
                KernelCommandLine.parse(entry.options(variables))
                for variables in self.possible_values(entry.variables(), *self.configs.values())
            )
            title = entry.get("title") or posixpath.basename(path)
            line = options[-1].line if options else 0
            yield BootEntry(path, line, title, path == default, lines, entry.get("linux"))

    def _default_specified(self) -> str:
        """The path of the specified entry that boots; empty where a menu entry of GRUB's own does."""
        grub = next(iter(self.configs.values()), None)
        if not self.entry_files or (grub and not any(c.name == "blscfg" for c in grub.commands)):
            return ""
        wanted = grub.default_text(self.variables) if grub else self.loader_default
        newest_first = sorted(self.entry_files, key=self._version, reverse=True)
        for number, path in enumerate(newest_first):
            name = posixpath.basename(path)
            names = (str(number), name.removesuffix(".conf"), self.entry_files[path].get("title") or name)
            if wanted in names or fnmatch.fnmatchcase(name, wanted):
                return path
        return newest_first[0]

    def _version(self, path: str) -> list[tuple[int, str]]:
        return _version_key(self.entry_files[path].get("version") or path)


def _version_key(version: str) -> list[tuple[int, str]]:
    return [(int(n[:18]), "") if n.isdigit() else (-1, n) for n in re.findall(r"[0-9]+|[^0-9]+", version)]


def read_boot_loader(tree: Tree) -> BootLoader:
    """Read what a tree holds of a boot loader, once for all requirements and anew after a change of the tree.

    Raises:
        TreeError: a file cannot be read.
        FormatError: a file is not what its format allows.
    """
    return tree.derive(_read)


def tokens_at_boot(tree: Tree, parameter: str) -> Iterator[tuple[BootEntry, Token]]:
    """Find every occurrence of a kernel parameter on any boot entry."""
    for entry in read_boot_loader(tree).entries:
        for line in entry.lines:
            yield from ((entry, token) for token in line.parameters if token.name == parameter)


def masked_at_boot(tree: Tree, unit: str) -> Evidence | None:
    """Find a boot entry that masks a unit (systemd-debug-generator(8))."""
    for entry, token in tokens_at_boot(tree, "systemd.mask"):
        if token.value == unit:
            return Evidence(entry.path, entry.line, token.text, f"no {token.text}")
    return None


def _read(tree: Tree) -> BootLoader:
    environment_path, environment = _environment(tree)
    reads_drop_ins = _reads_drop_ins(tree)
    kernel_install = tree.read_text_if_present(KERNEL_INSTALL)
    configs, unread = grub_files.read(tree)
    return BootLoader(
        configs=configs,
        unread=unread,
        entry_files=dict(_entry_files(tree)),
        environment_path=environment_path,
        environment=environment,
        defaults=_defaults(tree, with_drop_ins=reads_drop_ins),
        loader_default=_loader_default(tree),
        kernel_install=None if kernel_install is None else KernelCommandLine.parse(kernel_install),
        has_grub=bool(configs) or any(tree.exists(p) for p in (DEFAULTS, "/etc/grub.d", *_GRUB_MKCONFIG)),
        reads_drop_ins=reads_drop_ins,
        shell_appends=posixpath.basename(tree.resolve("/bin/sh")) != "dash",
        others=tuple(dict.fromkeys(name for d, pattern, name in _OTHER_LOADERS if tree.names(d, pattern))),
    )


def _entry_files(tree: Tree) -> Iterator[tuple[str, BootLoaderEntry]]:
    seen = set()
    for directory in ENTRY_DIRECTORIES:
        for path in tree.files(directory, "*.conf"):
            if tree.resolve(path) not in seen:
                seen.add(tree.resolve(path))
                yield path, _named(path, _parse_entry, tree.read_text(path))


def _environment(tree: Tree) -> tuple[str, EnvironmentBlock | None]:
    for directory in grub_files.DIRECTORIES:
        path = posixpath.join(directory, "grubenv")
        text = tree.read_text_if_present(path)
        if text is not None:
            from tpu_image.formats.grub_environment import EnvironmentBlock

            try:
                return path, EnvironmentBlock.parse(text)
            except FormatError:
                # GRUB says "invalid environment block" and goes on without it.
                return path, None
    return posixpath.join(grub_files.DIRECTORIES[0], "grubenv"), None


def _loader_default(tree: Tree) -> str:
    for directory in ENTRY_DIRECTORIES:
        text = tree.read_text_if_present(posixpath.join(posixpath.dirname(directory), "loader.conf"))
        if text is not None:
            return _parse_entry(text).get("default")
    return ""


def _reads_drop_ins(tree: Tree) -> bool:
    for path in _GRUB_MKCONFIG:
        text = tree.read_text_if_present(path)
        if text is not None:
            return "default/grub.d" in text
    return True


def _defaults(tree: Tree, *, with_drop_ins: bool) -> GrubDefaults:
    paths = [DEFAULTS] if tree.is_file(DEFAULTS) else []
    if with_drop_ins:
        paths += tree.files(DROP_INS, "*.cfg")
    return _parse_defaults(tuple((path, tree.read_text(path)) for path in paths))


def _parse_entry(text: str) -> BootLoaderEntry:
    from tpu_image.formats.boot_loader_spec import BootLoaderEntry

    return BootLoaderEntry.parse(text)


# Requirements read the same few files, and a plan after every change.
@functools.lru_cache(maxsize=4)
def _parse_defaults(texts: tuple[tuple[str, str], ...]) -> GrubDefaults:
    return GrubDefaults.parse(texts)


def _named(path: str, parse: Callable[[str], _Parsed], text: str) -> _Parsed:
    """Parse a text, with the path in the reason where that fails."""
    try:
        return parse(text)
    except FormatError as error:
        raise FormatError(f"{path}: {error.reason}", error.line) from error
