from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tpu_image.catalogue.image_state import REQUIREMENTS
from tpu_image.catalogue.requirement import Profile, Requirement, Status, Verdict
from tpu_image.formats import yaml_text
from tpu_image.trees.memory import Directory, File, MemoryTree, Node, Symlink
from tpu_image.trees.overlay import Overlay

PROFILE = Profile()
REQUIREMENT: dict[str, Requirement] = {requirement.id: requirement for requirement in REQUIREMENTS}

CLOUD_CFG = "users: [default]\ncloud_final_modules: [runcmd, scripts-user]\n"
CLOUD_INIT = {"/usr/bin/cloud-init": "#!/usr/bin/python3\n", "/etc/cloud/cloud.cfg": CLOUD_CFG}
BAKED = "/etc/cloud/cloud.cfg.d/90-site.cfg"
SEED = "/var/lib/cloud/seed/nocloud"
STARTS_SCRIPT = "runcmd:\n- [bash, /var/scripts/configure-env-vars.sh]\n"

SELINUX = {"/etc/selinux/config": "# x\nSELINUX=enforcing\n", "/etc/selinux/targeted/policy/policy.33": "p"}
PERMISSIVE = {**SELINUX, "/etc/selinux/config": "SELINUX=permissive\n"}
PLACED = {"/var/scripts/get-vm-metadata.py": "x"}
GENERATOR = {"/usr/lib/systemd/system-generators/selinux-autorelabel-generator.sh": "#!/bin/sh\n"}
MARKER = {"/.autorelabel": ""}


@dataclass(frozen=True)
class State:
    about: str
    requirement: str
    files: dict[str, str | Node]
    status: Status
    mentions: tuple[str, ...] = field(default=())


def identity(about: str, files: dict[str, str | Node], status: Status, *mentions: str) -> State:
    return State(about, "image.identity", files, status, mentions)


def cloud(about: str, files: dict[str, str], status: Status, *mentions: str) -> State:
    return State(about, "image.cloud-config", {**CLOUD_INIT, **files}, status, mentions)


def selinux(about: str, files: dict[str, str], status: Status, *mentions: str) -> State:
    return State(about, "image.selinux", {**files}, status, mentions)


STATES = [
    identity("nothing", {}, Status.PASS),
    identity("blank ids", {"/etc/machine-id": "", "/var/lib/dbus/machine-id": ""}, Status.PASS),
    identity("id to be made", {"/etc/machine-id": "uninitialized\n"}, Status.PASS),
    identity("D-Bus link", {"/var/lib/dbus/machine-id": Symlink("/etc/machine-id")}, Status.PASS),
    identity("machine-id", {"/etc/machine-id": "0123\n"}, Status.WARN, "truncate -s 0 /etc/machine-id"),
    identity("D-Bus id", {"/var/lib/dbus/machine-id": "0123\n"}, Status.WARN, "ln -sf"),
    identity(
        "host key", {"/etc/ssh/ssh_host_rsa_key": "k"}, Status.WARN, "/etc/ssh/ssh_host_rsa_key", "rm -f"
    ),
    identity("public host key alone", {"/etc/ssh/ssh_host_rsa_key.pub": "k"}, Status.PASS),
    identity(
        "instance data",
        {"/var/lib/cloud/instances/i-1/obj.pkl": "x", "/var/lib/cloud/instance": Symlink("instances/i-1")},
        Status.WARN,
        "/var/lib/cloud/instances/i-1/obj.pkl",
        "rm -rf /var/lib/cloud/",
    ),
    identity("cloud-init scripts", {"/var/lib/cloud/scripts/per-boot/x.sh": "x"}, Status.PASS),
    identity("random seed", {"/var/lib/systemd/random-seed": "x"}, Status.WARN, "a random seed"),
    identity("lease", {"/var/lib/dhcp/dhclient.eth0.leases": "lease {}"}, Status.WARN, "DHCP leases"),
    identity("empty lease", {"/var/lib/dhcp/dhclient.leases": ""}, Status.PASS),
    identity(
        "network names", {"/etc/udev/rules.d/70-persistent-net.rules": "x"}, Status.WARN, "hardware address"
    ),
    identity("history", {"/home/me/.bash_history": "ls"}, Status.WARN, "/home/me/.bash_history"),
    identity(
        "credentials", {"/root/.config/gcloud/credentials.db": "x"}, Status.WARN, "Google Cloud credentials"
    ),
    identity(
        "running machine",
        {"/etc/machine-id": "0123\n", "/proc/1/comm": "systemd", "/run/systemd/system": Directory()},
        Status.SKIP,
        "running machine",
    ),
    identity("mounted /proc alone", {"/etc/machine-id": "0123\n", "/proc/1/comm": "x"}, Status.WARN),
    State("no cloud-init", "image.cloud-config", {}, Status.SKIP, ("no cloud-init",)),
    cloud("cloud-init alone", {}, Status.PASS, "only cloud-init's own"),
    cloud("disabled", {"/etc/cloud/cloud-init.disabled": "", BAKED: "["}, Status.SKIP, "disabled"),
    cloud("good", {BAKED: "write_files:\n- path: /etc/motd\n"}, Status.PASS, BAKED),
    cloud("not YAML", {BAKED: "a: [\n"}, Status.FAIL, f"{BAKED} line 2", "ignores the whole file"),
    cloud("not a mapping", {BAKED: "- a\n"}, Status.FAIL, "is not a mapping"),
    cloud(
        "mode that comes out right",
        {BAKED: "write_files:\n- {path: /x, permissions: 0444}\n"},
        Status.WARN,
        "'0444'",
    ),
    cloud("other mode", {BAKED: "write_files:\n- {path: /x, permissions: 444}\n"}, Status.FAIL, "0674"),
    cloud(
        "misspelt", {BAKED: "write_files:\n- {path: /x, permission: '0444'}\n"}, Status.FAIL, "permissions"
    ),
    cloud(
        "unknown owner",
        {BAKED: "write_files:\n- {path: /x, owner: tpu-runtime}\n"},
        Status.FAIL,
        "defer: true",
    ),
    cloud(
        "owner of sysusers.d",
        {
            BAKED: "write_files:\n- {path: /x, owner: 'tpu-runtime:staff'}\n",
            "/usr/lib/sysusers.d/tpu.conf": "# c\nu tpu-runtime 2000\n",
            "/etc/group": "root:x:0:\nstaff:x:50:\n",
        },
        Status.PASS,
    ),
    cloud("edited cloud.cfg", {"/etc/cloud/cloud.cfg": "runcmd: x\n"}, Status.FAIL, "runcmd is not a list"),
    cloud("first boot alone", {BAKED: STARTS_SCRIPT}, Status.WARN, "first boot alone", "runcmd replaces it"),
    cloud(
        "script written at the first boot",
        {BAKED: "write_files:\n- path: /var/scripts/get-vm-metadata.py\n"},
        Status.WARN,
        "a user's own write_files replaces it",
    ),
    cloud(
        "scripts of the user at every boot",
        {BAKED: STARTS_SCRIPT + "cloud_final_modules:\n- [scripts-user, always]\n"},
        Status.PASS,
    ),
    cloud(
        "every boot taken back by a later file",
        {
            BAKED: STARTS_SCRIPT + "cloud_final_modules:\n- [scripts-user, always]\n",
            "/etc/cloud/cloud.cfg.d/99.cfg": "cloud_final_modules: [scripts-user]\n",
        },
        Status.WARN,
    ),
    cloud("command of the first boot", {BAKED: "runcmd: [echo]\n"}, Status.PASS),
    cloud(
        "seed without header", {f"{SEED}/user-data": "runcmd: [a]\n"}, Status.FAIL, "begin with #cloud-config"
    ),
    cloud(
        "seed with a fault",
        {f"{SEED}/user-data": "#cloud-config\nruncmd: a\n"},
        Status.FAIL,
        f"{SEED}/user-data",
    ),
    cloud("seed that is a script", {f"{SEED}/user-data": "#!/bin/sh\n: [\n"}, Status.PASS),
    cloud(
        "seed that is taken",
        {f"{SEED}/user-data": "#cloud-config\n", f"{SEED}/meta-data": "x"},
        Status.WARN,
        "does not ask Compute Engine",
    ),
    cloud(
        "seed that is not asked for",
        {
            f"{SEED}/user-data": "#!/bin/sh\n",
            f"{SEED}/meta-data": "x",
            BAKED: "datasource_list: [GCE, None]\n",
        },
        Status.PASS,
    ),
    cloud("template", {BAKED: "## template: jinja\n{% if x %}\n"}, Status.PASS),
    cloud("bomb", {BAKED: "[" * 1000}, Status.UNKNOWN, BAKED, "inside one another"),
    selinux("none", {}, Status.SKIP, "no SELinux"),
    selinux("off", {**SELINUX, "/etc/selinux/config": "SELINUX=disabled\n"}, Status.SKIP, "SELINUX=disabled"),
    selinux(
        "no policy",
        {"/etc/selinux/config": "SELINUX=enforcing\n", **PLACED},
        Status.SKIP,
        "no SELinux policy",
    ),
    selinux("no file of ours", SELINUX, Status.PASS),
    selinux("permissive", {**PERMISSIVE, **PLACED}, Status.WARN, "permissive"),
    selinux("labels not seen", {**SELINUX, **PLACED}, Status.UNKNOWN, "tpu-image apply"),
    selinux(
        "relabelled at first boot",
        {**SELINUX, **PLACED, **GENERATOR, **MARKER},
        Status.WARN,
        "first boot relabels",
    ),
    selinux("nothing relabels", {**SELINUX, **PLACED, **MARKER}, Status.FAIL, "install policycoreutils"),
    selinux(
        "relabelling by hand",
        {
            **SELINUX,
            **PLACED,
            **GENERATOR,
            **MARKER,
            "/etc/selinux/config": "SELINUX=enforcing\nAUTORELABEL=0\n",
        },
        Status.FAIL,
        "AUTORELABEL=0",
    ),
    selinux(
        "running machine",
        {**SELINUX, **PLACED, "/proc/1/comm": "systemd", "/run/systemd/system/x": ""},
        Status.WARN,
        "restorecon -v /var/scripts/get-vm-metadata.py",
    ),
]


def tree_of(files: dict[str, str | Node]) -> MemoryTree:
    return MemoryTree({path: File(n.encode()) if isinstance(n, str) else n for path, n in files.items()})


def text_of(verdict: Verdict) -> str:
    shown = [f"{e.path} {e.found} {e.expected}" for e in verdict.evidence]
    return "\n".join([verdict.message, *shown, verdict.remedy])


@pytest.mark.parametrize("state", STATES, ids=lambda state: f"{state.requirement} {state.about}")
def test_the_state_gets_its_verdict(state: State) -> None:
    verdict = REQUIREMENT[state.requirement].inspect(tree_of(state.files), PROFILE)
    assert verdict.status is state.status, text_of(verdict)
    assert "\n" not in verdict.message
    for mention in state.mentions:
        assert mention in text_of(verdict)


def test_configuration_that_the_package_brought_is_not_parsed() -> None:
    import hashlib

    text = "broken: [\n"
    digest = hashlib.md5(text.encode()).hexdigest()
    status = f"Package: cloud-init\nConffiles:\n /etc/cloud/cloud.cfg {digest}\n"
    files: dict[str, str | Node] = {
        **CLOUD_INIT,
        "/etc/cloud/cloud.cfg": text,
        "/var/lib/dpkg/status": status,
    }
    inspect = REQUIREMENT["image.cloud-config"].inspect
    assert inspect(tree_of(files), PROFILE).status is Status.PASS
    files["/etc/cloud/cloud.cfg"] = text + "\n"
    assert inspect(tree_of(files), PROFILE).status is Status.FAIL


def test_without_pyyaml_what_is_baked_in_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(text: str) -> yaml_text.Document:
        raise yaml_text.PyYamlMissingError

    monkeypatch.setattr(yaml_text, "parse", parse)
    inspect = REQUIREMENT["image.cloud-config"].inspect
    assert inspect(tree_of({**CLOUD_INIT}), PROFILE).status is Status.PASS
    verdict = inspect(tree_of({**CLOUD_INIT, BAKED: "a: 1\n"}), PROFILE)
    assert verdict.status is Status.UNKNOWN
    assert verdict.message == f"PyYAML is needed to read this: {BAKED}"


RELABELS = {
    "a file is placed": ({**SELINUX}, "/etc/x", True),
    "nothing is placed": ({**SELINUX}, "", False),
    "a file was placed before": ({**SELINUX, **PLACED}, "", True),
    "permissive": ({**PERMISSIVE, **PLACED}, "/etc/x", False),
    "no policy": ({"/etc/selinux/config": "SELINUX=enforcing\n"}, "/etc/x", False),
    "no SELinux": ({}, "/etc/x", False),
    "running machine": ({**SELINUX, "/proc/1/comm": "x", "/run/systemd/system/x": ""}, "/etc/x", False),
}


@pytest.mark.parametrize(("files", "placed", "ordered"), RELABELS.values(), ids=RELABELS)
def test_a_relabel_is_ordered_once_where_files_come_without_labels(
    files: dict[str, str | Node], placed: str, ordered: bool
) -> None:
    requirement = REQUIREMENT["image.selinux"]
    overlay = Overlay(tree_of(files))
    if placed:
        overlay.write(placed, "x")
    requirement.plan(overlay, PROFILE)
    assert ("/.autorelabel" in overlay.written) is ordered
    again = Overlay(overlay)
    requirement.plan(again, PROFILE)
    assert not again.written


@pytest.mark.parametrize("requirement", ["image.identity", "image.cloud-config"])
def test_what_only_looks_plans_nothing(requirement: str) -> None:
    overlay = Overlay(tree_of({"/etc/machine-id": "0123\n", **CLOUD_INIT, BAKED: "["}))
    REQUIREMENT[requirement].plan(overlay, PROFILE)
    assert overlay.written == {}
