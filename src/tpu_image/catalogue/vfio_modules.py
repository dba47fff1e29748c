"""The kernel's part in VFIO: the modules every installed kernel must have, and unsafe interrupts.

Sources: section "Associa i dispositivi TPU a VFIO" of the document (R3: ``modprobe vfio-pci``,
``allow_unsafe_interrupts``); modprobe.d(5): a later ``options`` line overrides an earlier one, and none
reaches a module that is built in; modprobe(8), modules-load.d(5): ``blacklist`` binds systemd-modules-load, and
modprobe for aliases alone.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from tpu_image.catalogue.bind_script import code, read
from tpu_image.catalogue.binding import running_scripts
from tpu_image.catalogue.boot_loader import masked_at_boot, read_boot_loader, tokens_at_boot
from tpu_image.catalogue.drop_ins import late_names, write_late
from tpu_image.catalogue.requirement import Evidence, Profile, Requirement, Status, Verdict
from tpu_image.catalogue.systemd import units_of
from tpu_image.formats.kernel_cmdline import Token
from tpu_image.formats.modprobe import (
    Directive,
    canonical,
    directives,
    is_true,
    last_parameter,
    loaded_modules,
    module_path,
)
from tpu_image.trees.base import NotFoundError, Tree
from tpu_image.trees.overlay import Overlay

MODULES = ("vfio-pci", "vfio_iommu_type1")
MODPROBE_FILE = "/etc/modprobe.d/tpu-image.conf"
MODULES_LOAD_FILE = "/etc/modules-load.d/tpu-image.conf"
PARAMETER = "allow_unsafe_interrupts"

_PREFIXES = ("/etc", "/run", "/usr/local/lib", "/usr/lib", "/lib")
_LIST_LIMIT = 16 * 1024 * 1024
_NO_PROGRAM = ("false", "true", ":")


def kernels(tree: Tree) -> list[str]:
    """Give the releases of the installed kernels: those with a list of modules, or a kernel in ``/boot``."""
    return [
        release
        for release in tree.names("/lib/modules")
        if tree.is_file(f"/lib/modules/{release}/modules.dep") or tree.exists(f"/boot/vmlinuz-{release}")
    ]


def _configuration(tree: Tree, directory: str) -> Iterator[tuple[str, str]]:
    """Give path and text of the ``.conf`` files of ``modprobe.d`` or ``modules-load.d`` in their order."""
    by_name: dict[str, str] = {}
    for prefix in _PREFIXES:
        for path in tree.files(f"{prefix}/{directory}", "*.conf"):
            by_name.setdefault(path.rpartition("/")[2], path)
    for _, path in sorted(by_name.items()):
        yield path, tree.read_text(path)


def _modprobe_directives(tree: Tree) -> list[tuple[str, Directive]]:
    return [(path, found) for path, text in _configuration(tree, "modprobe.d") for found in directives(text)]


def _module_list(tree: Tree, release: str, name: str) -> bytes:
    try:
        return tree.read_bytes(f"/lib/modules/{release}/{name}", _LIST_LIMIT)
    except NotFoundError:
        return b""


def is_builtin(tree: Tree, release: str, module: str) -> bool:
    """Whether a kernel has a module built in."""
    return module_path(_module_list(tree, release, "modules.builtin"), module) is not None


def _is_installed(tree: Tree, release: str, module: str) -> bool:
    listed = module_path(_module_list(tree, release, "modules.dep"), module)
    return listed is not None or is_builtin(tree, release, module)


class VfioModules(Requirement):
    """vfio-pci and vfio_iommu_type1 in every kernel that can boot."""

    id = "vfio.modules"
    title = "every installed kernel has vfio-pci and vfio_iommu_type1"
    why = "Without them no TPU function can be bound, and nothing can map memory for it."
    source = "document, section “Associa i dispositivi TPU a VFIO” (R3)"
    changes = f"{MODULES_LOAD_FILE} loads both modules at boot"
    remedy = (
        "install a kernel that has VFIO (Ubuntu: linux-modules-extra of the same release; "
        "Debian: linux-image-amd64, not the cloud flavour)"
    )

    def inspect(self, tree: Tree, profile: Profile) -> Verdict:
        """Look into the lists of modules, and for what keeps a module from loading."""
        del profile
        releases = kernels(tree)
        if not releases:
            return self.unknown("no kernel is installed under /lib/modules, so its modules cannot be judged")
        missing = {
            release: absent
            for release in releases
            if (absent := [module for module in MODULES if not _is_installed(tree, release, module)])
        }
        if missing:
            lists = [
                Evidence(f"/lib/modules/{release}/modules.dep", found=f"no {module}", expected=module)
                for release, absent in missing.items()
                for module in absent
            ]
            lacks = (f"no {' and no '.join(absent)} for kernel {r}" for r, absent in missing.items())
            return self.failed("; ".join(lacks), *lists)
        barred = list(_barred(tree))
        if barred:
            remedy = f"remove line {barred[0].line} of {barred[0].path}"
            return self.failed(f"{barred[0].path} keeps modules from loading", *barred, remedy=remedy)
        replaced = list(_replaced(tree))
        if replaced:
            message = f"{replaced[0].path} has a program run in place of loading a module"
            remedy = f"remove line {replaced[0].line} of {replaced[0].path}, or see that the program loads it"
            return self.unknown(message, *replaced, remedy=remedy)
        blacklisted = list(_blacklisted(tree))
        if blacklisted:
            first = blacklisted[0]
            message = (
                f"{first.path} keeps modules from being loaded at boot: the bind script has to load them"
            )
            return self.warned(message, *blacklisted, remedy=f"remove line {first.line} of {first.path}")
        loaded = loaded_at_boot(tree)
        waiting = [
            module for module in MODULES if module not in loaded and not _everywhere(tree, releases, module)
        ]
        if waiting:
            message = (
                f"every kernel has them, but nothing loads {' and '.join(waiting)} before the first bind"
            )
            return self.warned(message, remedy="run: tpu-image apply")
        return self.passed(f"in kernel {', '.join(releases)}, loaded at boot")

    def plan(self, overlay: Overlay, profile: Profile) -> None:
        """Have systemd load the modules."""
        del profile
        if not any(_blacklisted(overlay)) and loaded_at_boot(overlay) != set(MODULES):
            overlay.write(MODULES_LOAD_FILE, "\n".join(["# Cloud TPU: written by tpu-image.", *MODULES, ""]))


def _everywhere(tree: Tree, releases: list[str], module: str) -> bool:
    return all(is_builtin(tree, release, module) for release in releases)


def loaded_at_boot(tree: Tree) -> set[str]:
    """Give those of :data:`MODULES` that modules-load.d names, as long as something reads it.

    systemd-modules-load heeds blacklists.
    """
    loader = units_of(tree).unit("systemd-modules-load.service")
    masked = loader is not None and (loader.masked or masked_at_boot(tree, loader.name))
    if masked or any(_blacklisted(tree)):
        return set()
    named = {name for _, text in _configuration(tree, "modules-load.d") for _, name in loaded_modules(text)}
    return {module for module in MODULES if canonical(module) in named}


def _barred(tree: Tree) -> Iterator[Evidence]:
    """Find what keeps one of the modules from being loaded, even by its name."""
    yield from _against_at_boot(tree, "module_blacklist")
    for path, directive in tree.derive(_modprobe_directives):
        program = (directive.rest.split() or [""])[0].rpartition("/")[2]
        if directive.command == "install" and program in _NO_PROGRAM:
            yield from _against(path, directive)


def _replaced(tree: Tree) -> Iterator[Evidence]:
    """Find ``install`` lines with a program that is not seen to load the module itself."""
    for path, directive in tree.derive(_modprobe_directives):
        words = directive.rest.split()
        programs = {word.rpartition("/")[2] for word in words}
        passes_on = "modprobe" in programs and ("--ignore-install" in words or "-i" in words)
        if directive.command == "install" and not passes_on:
            yield from _against(path, directive)


def _blacklisted(tree: Tree) -> Iterator[Evidence]:
    """Find what keeps systemd-modules-load from one of the modules; modprobe by name loads it all the same."""
    yield from _against_at_boot(tree, "modprobe.blacklist")
    for path, directive in tree.derive(_modprobe_directives):
        if directive.command == "blacklist":
            yield from _against(path, directive)


def _against(path: str, directive: Directive) -> Iterator[Evidence]:
    if directive.module in map(canonical, MODULES):
        text = f"{directive.command} {directive.module} {directive.rest}".strip()
        yield Evidence(path, directive.line, text, f"nothing against {directive.module}")


class UnsafeInterrupts(Requirement):
    """``allow_unsafe_interrupts`` of vfio_iommu_type1, set at every boot."""

    id = "vfio.unsafe-interrupts"
    title = "vfio_iommu_type1 allows unsafe interrupts at every boot"
    why = "On x86-64 VMs without interrupt remapping, VFIO otherwise refuses the TPU's IOMMU group."
    source = "document, section “Associa i dispositivi TPU a VFIO” (R3)"
    changes = f"{MODPROBE_FILE} sets the module option"

    def applies(self, profile: Profile) -> str:
        """Say that other architectures have no such parameter to set."""
        return "" if profile.architecture == "x86_64" else f"not needed on {profile.architecture}"

    def inspect(self, tree: Tree, profile: Profile) -> Verdict:
        """Look for a module option, a kernel parameter, or a bind script that sets it."""
        option = _last_option(tree)
        against = _turned_off_at_boot(tree)
        if option is not None and option_in_effect(tree) and against is None:
            return self.passed("set by a module option", option)
        if _on_every_entry(tree, f"vfio_iommu_type1.{PARAMETER}"):
            return self.passed("set on the kernel command line of every boot entry")
        path = self._script(tree, profile)
        if path:
            return self.passed(f"set by the bind script {path}", Evidence(path))
        if option is None:
            return self.failed(f"nothing sets {PARAMETER}", Evidence(MODPROBE_FILE, expected=_OPTION))
        if against is not None and option_in_effect(tree):
            message = f"a boot entry turns {PARAMETER} off again, whatever the module option says"
            remedy = f"remove {against.found} from the boot entry and the GRUB defaults"
            return self.failed(message, against, option, remedy=remedy)
        if _turns_on(option):
            message = (
                f"kernel {_builtin_type1(tree)[0]} has vfio_iommu_type1 built in: options do not reach it"
            )
            remedy = f"run: tpu-image apply, or add vfio_iommu_type1.{PARAMETER}=1 to the kernel command line"
            return self.failed(message, option, remedy=remedy)
        return self.failed(f"the last option that counts turns {PARAMETER} off", option)

    def _script(self, tree: Tree, profile: Profile) -> str:
        """Give the bind script that sets it whenever it runs; empty where none does."""
        paths = running_scripts(tree, profile)
        return next((path for path in paths if PARAMETER in code(read(tree, path))), "")

    def plan(self, overlay: Overlay, profile: Profile) -> None:
        """Set the module option, behind those that turn it off."""
        if self.inspect(overlay, profile).status is Status.PASS:
            return
        directory, name = posixpath.split(MODPROBE_FILE)
        others = (posixpath.basename(path) for path, _ in _configuration(overlay, "modprobe.d"))
        write_late(overlay, directory, late_names(others, name), option_in_effect, _write_option)


_OPTION = f"options vfio_iommu_type1 {PARAMETER}=1"


def _write_option(overlay: Overlay, path: str) -> None:
    overlay.write(path, f"# Cloud TPU: written by tpu-image.\n{_OPTION}\n")


def option_in_effect(tree: Tree) -> bool:
    """Whether a module option turns unsafe interrupts on, in every installed kernel."""
    option = _last_option(tree)
    return option is not None and _turns_on(option) and not _builtin_type1(tree)


def _turns_on(option: Evidence) -> bool:
    return is_true(option.found.rpartition("=")[2])


def _builtin_type1(tree: Tree) -> list[str]:
    """Give the kernels that no module option reaches."""
    return [release for release in kernels(tree) if is_builtin(tree, release, "vfio_iommu_type1")]


def _last_option(tree: Tree) -> Evidence | None:
    """Find the option that decides: the last one, since the kernel takes each in turn."""
    found = None
    for path, directive in tree.derive(_modprobe_directives):
        if directive.command == "options" and directive.module == "vfio_iommu_type1":
            value = last_parameter(directive.rest, PARAMETER)
            if value is not None:
                found = Evidence(path, directive.line, f"{PARAMETER}={value}", f"{PARAMETER}=1")
    return found


def _on_every_entry(tree: Tree, parameter: str) -> bool:
    """Whether a kernel parameter is true on every boot entry; False where there is none."""
    lines = [line for entry in read_boot_loader(tree).entries for line in entry.lines]
    return bool(lines) and all(_is_on(line.last(parameter)) for line in lines)


def _is_on(token: Token | None) -> bool:
    return token is not None and is_true("y" if token.value is None else token.value)


def _turned_off_at_boot(tree: Tree) -> Evidence | None:
    """Find a boot entry that turns the parameter off: modprobe puts the kernel command line behind options."""
    name = f"vfio_iommu_type1.{PARAMETER}"
    for entry in read_boot_loader(tree).entries:
        for line in entry.lines:
            token = line.last(name)
            if token is not None and not _is_on(token):
                return Evidence(entry.path, entry.line, token.text, f"{name}=1")
    return None


def _against_at_boot(tree: Tree, parameter: str) -> Iterator[Evidence]:
    """Find a kernel parameter of this name that lists one of the modules, on any boot entry."""
    for entry, token in tokens_at_boot(tree, parameter):
        barred = set(map(canonical, (token.value or "").split(","))) & set(map(canonical, MODULES))
        if barred:
            yield Evidence(entry.path, entry.line, token.text, f"nothing against {min(barred)}")
