"""Device nodes: open by rule for those they are meant for."""

from __future__ import annotations

import pytest

import vfio_recipe
from tpu_image.catalogue import boot_tasks, device_nodes, vfio
from tpu_image.catalogue.accounts import group_id
from tpu_image.catalogue.bind_script import render
from tpu_image.catalogue.device_nodes import AccelAccess, DeviceAccess, render_rules
from tpu_image.catalogue.groups import SYSUSERS_FILE, ensure_group
from tpu_image.catalogue.hardware import generation
from tpu_image.catalogue.requirement import Profile, Requirement, Status, Verdict
from tpu_image.formats import FormatError
from tpu_image.formats.udev_lint import lint
from tpu_image.formats.udev_rules import parse
from tpu_image.trees.memory import File, MemoryTree
from tpu_image.trees.overlay import Overlay
from vfio_trees import Changes, image, script

RULES = "/etc/udev/rules.d/a.rules"
EVERYBODY, GROUP = Profile(), Profile(device_group="kvm")
BOUND: Changes = {
    vfio.RULES_FILE: vfio.render_rules(),
    "/usr/lib/udev/bind_to_vfio_pci.sh": script(render(EVERYBODY)),
}
NEWER_KERNEL: Changes = {
    "/usr/lib/modules/6.8.0-1-gcp/modules.dep": "k/vfio-pci.ko:\nk/vfio_iommu_type1.ko:\n"
}
GROUP_NODES = 'SUBSYSTEM=="vfio", KERNEL!="vfio", MODE="0666"\n'


def judge(requirement: Requirement, *changes: Changes, profile: Profile = EVERYBODY) -> Verdict:
    return requirement.inspect(image(*changes), profile)


def shown(verdict: Verdict) -> str:
    return "\n".join(
        [verdict.message, *(f"{e.path}:{e.line} {e.found} {e.expected}" for e in verdict.evidence)]
    )


@pytest.mark.parametrize(
    "changes",
    [
        [{RULES: GROUP_NODES}],
        [{RULES: 'SUBSYSTEM=="vfio", MODE="666"\n'}],
        [{RULES: 'KERNEL=="[0-9]*", SUBSYSTEM=="vfio", MODE:="0666"\nSUBSYSTEM=="vfio", MODE="0600"\n'}],
        [BOUND, {device_nodes.RULES_FILE: render_rules(EVERYBODY)}],
        [BOUND, {device_nodes.RULES_FILE: render_rules(EVERYBODY)}, NEWER_KERNEL],
        [{RULES: GROUP_NODES + 'SUBSYSTEM=="vfio-dev", MODE="0666"\n'}, NEWER_KERNEL],
    ],
)
def test_rules_that_open_the_nodes_pass(changes: list[Changes]) -> None:
    verdict = judge(DeviceAccess(), *changes)
    assert verdict.status is Status.PASS, shown(verdict)


@pytest.mark.parametrize(
    ("changes", "mention"),
    [
        ([], "/dev/vfio/0 is not opened: no rule sets it"),
        (
            [{RULES: GROUP_NODES}, {"/etc/udev/rules.d/z.rules": 'SUBSYSTEM=="vfio", MODE="0600"\n'}],
            "z.rules:1",
        ),
        ([{RULES: 'SUBSYSTEM=="vfio", KERNEL=="[0-9]", MODE="0666"\n'}], "/dev/vfio/12"),
        ([{RULES: 'SUBSYSTEM=="vfio", MODE="0660", GROUP="kvm"\n'}], "0660"),
        ([{RULES: GROUP_NODES}, NEWER_KERNEL], "/dev/vfio/devices/vfio0"),
        ([{device_nodes.RULES_FILE: render_rules(EVERYBODY)}], "waits for a mark"),
        (
            [
                {vfio.RULES_FILE: vfio_recipe.BIND_RULES},
                {"/usr/lib/udev/bind_to_vfio_pci.sh": script(vfio_recipe.BIND_SCRIPT)},
                {device_nodes.RULES_FILE: vfio_recipe.ACCEL_RULES},
            ],
            "no rule sets it",
        ),
    ],
)
def test_nodes_that_stay_closed_fail(changes: list[Changes], mention: str) -> None:
    verdict = judge(DeviceAccess(), *changes)
    assert verdict.status is Status.FAIL
    assert mention in shown(verdict)


def test_a_mode_that_depends_on_a_program_is_unknown() -> None:
    verdict = judge(DeviceAccess(), {RULES: 'SUBSYSTEM=="vfio", PROGRAM=="/bin/x", MODE="0666"\n'})
    assert verdict.status is Status.UNKNOWN


def test_a_rule_for_add_alone_is_warned_about() -> None:
    verdict = judge(DeviceAccess(), {RULES: 'ACTION=="add", ' + GROUP_NODES})
    assert verdict.status is Status.WARN
    assert "udevadm trigger" in verdict.message


@pytest.mark.parametrize(
    ("rules", "status"),
    [
        ('SUBSYSTEM=="vfio", GROUP="kvm", MODE="0660"\n', Status.PASS),
        ('SUBSYSTEM=="vfio", GROUP="104", MODE="0660"\n', Status.PASS),
        ('SUBSYSTEM=="vfio", GROUP="kvm"\n', Status.PASS),  # udev makes such a node 0660
        ('SUBSYSTEM=="vfio", GROUP="root", MODE="0660"\n', Status.FAIL),
        ('SUBSYSTEM=="vfio", MODE="0660"\n', Status.FAIL),
        ('SUBSYSTEM=="vfio", GROUP="kvm", MODE="0666"\n', Status.FAIL),
        ('SUBSYSTEM=="vfio", GROUP="absent", MODE="0660"\n', Status.FAIL),
    ],
)
def test_nodes_for_a_group(rules: str, status: Status) -> None:
    verdict = judge(DeviceAccess(), {RULES: rules}, profile=GROUP)
    assert verdict.status is status, shown(verdict)


def test_a_group_that_the_tree_lacks_fails() -> None:
    verdict = judge(DeviceAccess(), {RULES: GROUP_NODES}, profile=Profile(device_group="tpu"))
    assert "group tpu does not exist" in verdict.message


def test_a_group_that_is_no_system_group_is_warned_about() -> None:
    rules = 'SUBSYSTEM=="vfio", GROUP="users", MODE="0660"\n'
    verdict = judge(DeviceAccess(), {RULES: rules}, profile=Profile(device_group="users"))
    assert verdict.status is Status.WARN
    assert "systemd 258" in verdict.message


@pytest.mark.parametrize(
    ("rules", "status", "mention"),
    [
        ('KERNEL=="accel*", MODE="0666"\n', Status.PASS, ""),
        ('SUBSYSTEM=="accel", ATTRS{vendor}=="0x1ae0", MODE="0666"\n', Status.PASS, ""),
        (vfio_recipe.ACCEL_RULES, Status.WARN, "a.rules:1: a comma is missing"),
        ('KERNEL=="accel*", GROUP="absent", MODE="0666"\n', Status.WARN, 'GROUP="absent" does not exist'),
        ('KERNEL=="accel*",\nMODE=0666\n', Status.FAIL, "no rule"),
        ('KERNEL=="accel*", MODE="0660"\n', Status.FAIL, "0660"),
        ("", Status.FAIL, "no rule"),
    ],
)
def test_accel_nodes(rules: str, status: Status, mention: str) -> None:
    verdict = judge(AccelAccess(), {RULES: rules})
    assert verdict.status is status, shown(verdict)
    assert mention in verdict.message


@pytest.mark.parametrize(("systemd", "status"), [("252", Status.WARN), ("258", Status.FAIL)])
def test_an_unknown_group_counts_by_the_systemd_of_the_tree(systemd: str, status: Status) -> None:
    library = "/usr/lib/x86_64-linux-gnu/systemd/libsystemd-shared-{}.so"
    changes: Changes = {
        library.format("252"): None,
        library.format(systemd): "",
        RULES: 'KERNEL=="accel*", GROUP="absent", MODE="0666"\n',
    }
    assert judge(AccelAccess(), changes).status is status


@pytest.mark.parametrize("later", ['SUBSYSTEM=="vfio", MODE="0600"\n', 'PROGRAM=="/x", MODE="0600"\n'])
def test_apply_makes_the_rules_final_where_a_later_rule_closes_the_nodes(later: str) -> None:
    overlay = Overlay(image(BOUND, {"/etc/udev/rules.d/99-zz.rules": later}))
    DeviceAccess().plan(overlay, EVERYBODY)
    assert DeviceAccess().inspect(overlay, EVERYBODY).status is Status.PASS
    assert overlay.read_text(device_nodes.RULES_FILE) == render_rules(EVERYBODY, ":=")


def test_an_earlier_final_rule_of_the_administrator_is_named_and_stays() -> None:
    first = {"/etc/udev/rules.d/00.rules": 'SUBSYSTEM=="vfio", MODE:="0600"\n'}
    overlay = Overlay(image(BOUND, first))
    DeviceAccess().plan(overlay, EVERYBODY)
    verdict = DeviceAccess().inspect(overlay, EVERYBODY)
    assert verdict.status is Status.FAIL
    assert "/etc/udev/rules.d/00.rules:1" in shown(verdict)


def test_apply_adds_the_comma_in_a_file_with_other_rules() -> None:
    mine = '# mine\nSUBSYSTEM=="usb", MODE="0640"\n'
    overlay = Overlay(image({device_nodes.RULES_FILE: mine + vfio_recipe.ACCEL_RULES}))
    AccelAccess().plan(overlay, EVERYBODY)
    assert AccelAccess().inspect(overlay, EVERYBODY).status is Status.PASS
    assert overlay.read_text(device_nodes.RULES_FILE) == mine + 'KERNEL=="accel*", MODE="0666"\n'


def test_the_rules_have_no_fault() -> None:
    for profile in (EVERYBODY, GROUP):
        for operator in ("=", ":="):
            assert lint(parse(render_rules(profile, operator)), {"root"}, {"kvm"}) == []


def test_only_marked_groups_are_opened_by_our_rules() -> None:
    tree = image(BOUND, {device_nodes.RULES_FILE: render_rules(EVERYBODY)})
    assert device_nodes.opens_group_nodes(tree, EVERYBODY, marked=True)
    assert not device_nodes.opens_group_nodes(tree, EVERYBODY, marked=False)


def test_apply_makes_the_group_as_a_system_group() -> None:
    profile = Profile(device_group="tpu")
    overlay = Overlay(image(BOUND))
    AccelAccess().plan(overlay, profile)
    assert group_id(overlay, "tpu") == 999
    assert overlay.read_text("/etc/group").endswith("users:x:1000:\ntpu:x:999:\n")
    assert overlay.written["/etc/gshadow"] == File(b"root:*::\ntpu:!::\n", 0o640, 0, 42)
    assert overlay.read_text(SYSUSERS_FILE).endswith("g tpu -\n")


def test_the_group_and_the_user_of_the_boot_runtime_are_declared_in_files_of_their_own() -> None:
    assert SYSUSERS_FILE != boot_tasks.SYSUSERS_PATH


def test_on_any_machine_the_group_is_left_to_sysusers() -> None:
    profile = Profile(device_group="tpu")
    overlay = Overlay(MemoryTree())
    AccelAccess().plan(overlay, profile)
    assert "/etc/group" not in overlay.written
    assert overlay.read_text(SYSUSERS_FILE).endswith("g tpu -\n")
    assert AccelAccess().inspect(overlay, profile).status is Status.PASS


def test_rules_are_final_only_where_that_opens_the_nodes() -> None:
    overlay = Overlay(MemoryTree())  # nothing runs the bind script there, so no group is marked
    DeviceAccess().plan(overlay, EVERYBODY)
    assert overlay.read_text(device_nodes.RULES_FILE) == render_rules(EVERYBODY)


def test_every_group_name_that_a_user_may_give_can_be_written() -> None:
    assert 'GROUP="' + "a" * 32 in render_rules(Profile(device_group="a" * 32))


def test_a_group_that_exists_is_left_alone() -> None:
    overlay = Overlay(image())
    ensure_group(overlay, "kvm")
    assert overlay.written == {}


def test_a_taken_id_is_not_given_again() -> None:
    overlay = Overlay(
        image(
            {
                "/etc/group": "root:x:0:\na:x:999:",
                "/etc/passwd": "b:x:1:998::/:/bin/sh\n",
                "/etc/gshadow": None,
            }
        )
    )
    ensure_group(overlay, "tpu")
    assert overlay.read_text("/etc/group") == "root:x:0:\na:x:999:\ntpu:x:997:\n"
    assert "/etc/gshadow" not in overlay.written


def test_a_system_without_a_free_id_is_said() -> None:
    full = "".join(f"g{number}:x:{number}:\n" for number in range(1000))
    with pytest.raises(FormatError, match="no free id"):
        ensure_group(Overlay(image({"/etc/group": full})), "tpu")


def test_device_access_is_about_vfio_generations_alone() -> None:
    assert DeviceAccess().applies(Profile(generations=(generation("v4"),)))
    assert not AccelAccess().applies(EVERYBODY)
