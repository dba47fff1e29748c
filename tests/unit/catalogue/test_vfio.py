"""Binding: which rules and scripts work, whatever their spelling, and which do not."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vfio_recipe
from tpu_image.catalogue import bind_script, device_nodes, vfio
from tpu_image.catalogue.bind_script import SCRIPT, render
from tpu_image.catalogue.hardware import generation
from tpu_image.catalogue.requirement import Evidence, Platform, Profile, Requirement, Status, Verdict
from tpu_image.formats import FormatError
from tpu_image.formats.udev_lint import lint
from tpu_image.formats.udev_rules import parse
from tpu_image.trees.memory import File, MemoryTree, Symlink
from tpu_image.trees.overlay import Overlay
from vfio_trees import Changes, applied, image, script

V6E = Profile(generations=(generation("v6e"),))
RULES = "/etc/udev/rules.d/a.rules"
OURS = {SCRIPT.replace("/lib/", "/usr/lib/", 1): script(render(Profile()))}
RULE = 'ACTION=="add", SUBSYSTEM=="pci", ATTR{vendor}=="0x1ae0", ATTR{device}=="0x006f"'
DOCUMENT: Changes = {
    vfio.RULES_FILE: vfio_recipe.BIND_RULES,
    "/usr/lib/udev/bind_to_vfio_pci.sh": script(vfio_recipe.BIND_SCRIPT),
    device_nodes.RULES_FILE: vfio_recipe.ACCEL_RULES,
}


def shown(verdict: Verdict) -> str:
    return "\n".join(
        [verdict.message, *(f"{e.path}:{e.line} {e.found} {e.expected}" for e in verdict.evidence)]
    )


def bind_rules(text: str, *changes: Changes, profile: Profile = V6E) -> Verdict:
    return vfio.BindRules().inspect(image(OURS, {RULES: text}, *changes), profile)


@pytest.mark.parametrize(
    "rules",
    [
        f'{RULE}, RUN+="{SCRIPT} $kernel"',
        f'{RULE}, RUN+="{SCRIPT} %k"',
        f'{RULE}, RUN+="/usr{SCRIPT} $env{{PCI_SLOT_NAME}}"',
        f'{RULE}, RUN+="bind_to_vfio_pci.sh $kernel"',
        f"{RULE}, RUN+=\"'{SCRIPT}' '$kernel'\"",
        f'{RULE}, RUN+="/bin/sh {SCRIPT} $kernel"',
        f'{RULE}, RUN+="/usr/bin/timeout -k 5 30 {SCRIPT} $kernel"',
        f'{RULE}, RUN+="/usr/bin/env -u HOME A=b nice -n 5 /bin/sh {SCRIPT} $kernel"',
        f'{RULE}, RUN+="/usr/bin/env bash -e {SCRIPT} $kernel"',
        f'{RULE}, RUN+="/usr/bin/env A=b {SCRIPT} $kernel"',
        f'{RULE}, RUN+="{SCRIPT} $kernel"\nKERNEL=="sda" MODE="0600"',  # a fault that is not ours
        f"{RULE}, RUN+=\"/bin/sh -c '{SCRIPT} $kernel'\"",
        f'{RULE}, TAG+="tpu"\nTAG=="tpu", RUN+="{SCRIPT} $kernel"',
        f'{RULE}, ENV{{TPU}}="1"\nENV{{TPU}}=="1", RUN+="{SCRIPT} $kernel"',
        f'SUBSYSTEM!="pci", GOTO="e"\nATTR{{device}}=="0x0063|0x006f", RUN+="{SCRIPT} $kernel"\nLABEL="e"',
        f'SUBSYSTEM=="pci", \\\nATTRS{{vendor}}=="0x1ae0", ATTRS{{device}}=="0x006?", \\\nRUN+="{SCRIPT} %k"',
        f'ENV{{MODALIAS}}=="pci:v00001AE0d0000006F*", RUN+="{SCRIPT} $kernel"',
        f'{RULE}, CONST{{arch}}=="x86-64", RUN+="{SCRIPT} $kernel"',
        f'{RULE}, TEST=="/usr/bin/sh", RUN+="{SCRIPT} $kernel"',
        f'{RULE}, RUN+="/usr/bin/logger $kernel", RUN+="{SCRIPT} $kernel"',
    ],
)
def test_every_spelling_that_runs_the_script_passes(rules: str) -> None:
    verdict = bind_rules(rules + "\n")
    assert verdict.status is Status.PASS, shown(verdict)


@pytest.mark.parametrize(
    ("rules", "mention"),
    [
        ("", "no udev rule binds a v6e (1ae0:006f)"),
        (f'{RULE}, RUN+="/usr/bin/logger $kernel"', "no udev rule binds"),
        (f'{RULE}, RUN{{builtin}}+="kmod load vfio-pci"', "no udev rule binds"),
        (f'{RULE.replace("006f", "0062")}, RUN+="{SCRIPT} $kernel"', "no udev rule binds"),
        (f'{RULE.replace("add", "change")}, RUN+="{SCRIPT} $kernel"', "no udev rule binds"),
        (
            f'{RULE}, RUN+="{SCRIPT} $kernel"\nSUBSYSTEM=="pci", RUN=""',
            "taken away by /etc/udev/rules.d/a.rules:2",
        ),
        (
            f'SUBSYSTEM=="pci", RUN:="/x"\n{RULE}, RUN+="{SCRIPT} $kernel"',
            "taken away by /etc/udev/rules.d/a.rules:1",
        ),
        (
            f'{RULE}, RUN+="{SCRIPT} $kernel" # bind',
            "a.rules:1 udev ignores the line: a comment cannot follow",
        ),
        (f'{RULE},\n RUN+="{SCRIPT} $kernel', "a.rules:1 udev ignores the line: it only compares"),
        (f'{RULE}, RUN+="/opt/vfio-bind $kernel"', "/opt/vfio-bind does not exist"),
        (f'{RULE}, RUN+="{SCRIPT}"', "not run with the address"),
        (f'{RULE}, RUN+="{SCRIPT} $devpath"', "not run with the address"),
    ],
)
def test_rules_that_do_not_bind_fail_and_say_why(rules: str, mention: str) -> None:
    verdict = bind_rules(rules + "\n")
    assert verdict.status is Status.FAIL
    assert mention in shown(verdict)


@pytest.mark.parametrize(
    ("rules", "mention"),
    [
        (f'{RULE}, PROGRAM=="/opt/is-tpu", RUN+="{SCRIPT} $kernel"', 'PROGRAM=="/opt/is-tpu"'),
        (f'{RULE}, ATTR{{revision}}=="0x01", RUN+="{SCRIPT} $kernel"', 'ATTR{revision}=="0x01"'),
        (f"{RULE}, RUN+=\"/bin/sh -c 'echo vfio-pci > /sys/$devpath/driver_override'\"", "shell commands"),
    ],
)
def test_what_cannot_be_decided_is_unknown(rules: str, mention: str) -> None:
    verdict = bind_rules(rules + "\n")
    assert verdict.status is Status.UNKNOWN
    assert mention in verdict.message


@pytest.mark.parametrize(
    ("change", "mention"),
    [
        ({"/usr/lib/udev/bind_to_vfio_pci.sh": None}, "does not exist"),
        (
            {"/usr/lib/udev/bind_to_vfio_pci.sh": script(render(Profile()), 0o644)},
            "not executable (mode 0644)",
        ),
        ({"/usr/bin/sh": None}, "needs the interpreter /bin/sh"),
        (
            {"/usr/lib/udev/bind_to_vfio_pci.sh": script(render(Profile()).replace("\n", "\r\n"))},
            "CR LF line ends",
        ),
        ({"/usr/lib/udev/bind_to_vfio_pci.sh": script("driver_override\n")}, "no #! line"),
    ],
)
def test_rules_that_run_what_cannot_start_fail(change: Changes, mention: str) -> None:
    tree = image(OURS, {RULES: f'{RULE}, RUN+="{SCRIPT} $kernel"\n'}, change)
    for requirement in (vfio.BindRules(), vfio.BindScript()):
        verdict = requirement.inspect(tree, V6E)
        assert verdict.status is Status.FAIL
        assert mention in verdict.message


def test_every_generation_of_the_profile_must_be_bound() -> None:
    verdict = bind_rules(f'{RULE}, RUN+="{SCRIPT} $kernel"\n', profile=Profile())
    assert verdict.status is Status.FAIL
    assert "v5p (1ae0:0062), tpu7x (1ae0:0076)" in verdict.message


def test_an_undecided_line_beside_a_certain_one_does_no_harm() -> None:
    rules = f'{RULE}, RUN+="{SCRIPT} $kernel"\nPROGRAM=="/x", RUN+="/opt/vfio-other $kernel"\n'
    assert bind_rules(rules).status is Status.PASS


def test_lines_that_work_and_are_faulty_are_warned_about() -> None:
    verdict = bind_rules(f'{RULE} RUN+="{SCRIPT} $kernel"\n')
    assert verdict.status is Status.WARN
    assert "a.rules:1: a comma is missing" in verdict.message


@pytest.mark.parametrize(
    ("masks", "status"),
    [
        ({"/run/udev/rules.d/a.rules": "# masks nothing in /etc\n"}, Status.PASS),
        ({RULES: Symlink("/dev/null")}, Status.FAIL),
        ({RULES: ""}, Status.FAIL),
        ({"/etc/udev/rules.d/z.rules": 'SUBSYSTEM=="pci", RUN=""\n'}, Status.FAIL),
        ({"/etc/udev/rules.d/z.conf": 'SUBSYSTEM=="pci", RUN=""\n'}, Status.PASS),
    ],
)
def test_files_take_precedence_and_mask_as_in_udev(masks: Changes, status: Status) -> None:
    assert bind_rules(f'{RULE}, RUN+="{SCRIPT} $kernel"\n', masks).status is status


def test_a_file_in_etc_masks_the_one_of_the_distribution() -> None:
    lower = {"/usr/lib/udev/rules.d/a.rules": 'SUBSYSTEM=="pci", RUN:="/bin/x"\n'}
    assert bind_rules(f'{RULE}, RUN+="{SCRIPT} $kernel"\n', lower).status is Status.PASS


def test_the_documents_rules_warn_about_a_function_that_is_bound_already() -> None:
    verdict = vfio.BindRules().inspect(image(DOCUMENT), Profile())
    assert verdict.status is Status.WARN
    assert "v5p, v6e, tpu7x function that is on vfio-pci already" in verdict.message


def test_they_pass_once_a_rule_opens_every_group_node() -> None:
    opened = {RULES: 'SUBSYSTEM=="vfio", MODE="0666"\n'}
    assert vfio.BindRules().inspect(image(DOCUMENT, opened), Profile()).status is Status.PASS


def test_the_documents_script_warns_and_its_faults_are_named() -> None:
    verdict = vfio.BindScript().inspect(image(DOCUMENT), Profile())
    assert verdict.status is Status.WARN
    lines = vfio_recipe.BIND_SCRIPT.splitlines()
    assert [lines[e.line - 1].strip() for e in verdict.evidence] == [
        "exit 0",
        'DBDF_REGEX="^[[:xdigit:]]{4}:[[:xdigit:]]{2}:[[:xdigit:]]{2}.[[:xdigit:]]$"',
        'DBDF_REGEX="^[[:xdigit:]]{4}:[[:xdigit:]]{2}:[[:xdigit:]]{2}.[[:xdigit:]]$"',
        'echo "Bound $BDF to vfio-pci"',
    ]


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("modprobe vfio-pci", "load vfio-pci"),
        ("driver_override", "set driver_override"),
        ("unbind", "unbind another driver"),
        ("drivers_probe", "have vfio-pci probe"),
        ("chmod", "open /dev/vfio/GROUP"),
        ("allow_unsafe", "set allow_unsafe_interrupts"),
        ("=~", "check that its argument is a PCI address"),
    ],
)
def test_a_script_without_a_step_fails_naming_it(line: str, step: str) -> None:
    text = "\n".join(t if line not in t else "# " + t for t in vfio_recipe.BIND_SCRIPT.splitlines())
    verdict = vfio.BindScript().inspect(
        image(DOCUMENT, {"/usr/lib/udev/bind_to_vfio_pci.sh": script(text)}), Profile()
    )
    assert verdict.status is Status.FAIL
    assert step in verdict.message


@pytest.mark.parametrize(
    ("line", "elsewhere"),
    [
        ("modprobe vfio-pci", {"/etc/modules-load.d/a.conf": "vfio-pci\n"}),
        ("chmod", {RULES: 'SUBSYSTEM=="vfio", MODE="0666"\n'}),
        ("allow_unsafe", {"/etc/modprobe.d/a.conf": "options vfio_iommu_type1 allow_unsafe_interrupts=1\n"}),
    ],
)
def test_a_step_that_the_system_takes_may_be_missing(line: str, elsewhere: Changes) -> None:
    text = "\n".join(t if line not in t else "# " + t for t in vfio_recipe.BIND_SCRIPT.splitlines())
    tree = image(DOCUMENT, {"/usr/lib/udev/bind_to_vfio_pci.sh": script(text)}, elsewhere)
    assert vfio.BindScript().inspect(tree, Profile()).status is Status.WARN


def test_another_script_with_every_step_is_for_a_boot_to_prove() -> None:
    text = """#!/bin/sh
case $1 in ????:??:??.?) ;; *) exit 1 ;; esac
modprobe vfio-pci
echo vfio-pci > /sys/bus/pci/devices/$1/driver_override
echo $1 > /sys/bus/pci/devices/$1/driver/unbind
echo $1 > /sys/bus/pci/drivers_probe
echo 1 > /sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts
chmod 666 /dev/vfio/*
"""
    changes: Changes = {
        "/opt/bind": script(text),
        RULES: f'{RULE}, RUN+="/opt/bind %k"\n',
    }
    verdict = vfio.BindScript().inspect(image(changes), V6E)
    assert verdict.status is Status.WARN
    assert "for a boot to prove" in verdict.message


def test_our_script_passes_wherever_the_rules_find_it() -> None:
    changes: Changes = {
        "/opt/bind": script(render(Profile())),
        RULES: f'{RULE}, RUN+="/opt/bind %k"\n',
    }
    verdict = vfio.BindScript().inspect(image(changes), V6E)
    assert (verdict.status, verdict.evidence) == (Status.PASS, (Evidence("/opt/bind"),))


def test_our_script_for_everybody_does_not_serve_a_group() -> None:
    tree = image(OURS, {RULES: f'{RULE}, RUN+="{SCRIPT} $kernel"\n'})
    profile = Profile(generations=V6E.generations, device_group="tpu")
    assert vfio.BindScript().inspect(tree, profile).status is Status.FAIL


def test_without_rules_the_documented_script_is_judged() -> None:
    assert vfio.BindScript().inspect(image(OURS), V6E).status is Status.PASS
    assert "does not exist" in vfio.BindScript().inspect(image(), V6E).message


@pytest.mark.parametrize("group", ["", "tpu"])
def test_the_script_is_made_for_the_profile(group: str) -> None:
    lines = render(Profile(device_group=group)).splitlines()
    assert f"node_group={group}" in lines
    assert ("node_mode=0660" if group else "node_mode=0666") in lines


def test_the_script_is_found_inside_a_zipapp(tmp_path: Path) -> None:
    source = Path(bind_script.__file__).parents[2]
    archive = shutil.make_archive(str(tmp_path / "checker"), "zip", source, "tpu_image")
    program = "from tpu_image.catalogue import files; print(files.read('bind_to_vfio_pci.sh'), end='')"
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {archive!r}); {program}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == render(Profile()), done.stderr


@pytest.mark.parametrize("group", ["a b", "$(id)", "x\ny", "Tpu", "a" * 40, '"', "-x"])
def test_a_group_that_is_no_name_never_reaches_a_script_or_rule(group: str) -> None:
    for made in (render, device_nodes.render_rules):
        with pytest.raises(FormatError, match="not a group name"):
            made(Profile(device_group=group))


def test_a_profile_without_vfio_generations_is_skipped_with_the_reason() -> None:
    profile = Profile(Platform.COMPUTE_ENGINE, (generation("v4"),))
    assert "no generation" in vfio.BindRules().applies(profile)
    assert "no generation" in vfio.BindScript().applies(profile)
    assert not vfio.BindRules().applies(V6E)


def test_our_rules_have_no_fault() -> None:
    assert lint(parse(vfio.render_rules()), {"root"}, {"root"}) == []


REQUIREMENTS: tuple[Requirement, ...] = (
    *[r for r in vfio.REQUIREMENTS if not r.live],
    *device_nodes.REQUIREMENTS,
)


def plan(tree: MemoryTree, profile: Profile) -> Overlay:
    overlay = Overlay(tree)
    for requirement in REQUIREMENTS:
        requirement.plan(overlay, profile)
    return overlay


@pytest.mark.parametrize(
    "profile", [Profile(), V6E, Profile(device_group="tpu")], ids=["document", "v6e", "group"]
)
@pytest.mark.parametrize("start", [{}, DOCUMENT], ids=["plain", "document"])
def test_apply_meets_every_requirement_and_changes_nothing_again(profile: Profile, start: Changes) -> None:
    overlay = plan(image(start), profile)
    for requirement in REQUIREMENTS:
        verdict = requirement.inspect(overlay, profile)
        assert verdict.status is Status.PASS, shown(verdict)
    assert applied(plan_again(overlay, profile)) == {}


def plan_again(overlay: Overlay, profile: Profile) -> Overlay:
    again = Overlay(overlay)
    for requirement in REQUIREMENTS:
        requirement.plan(again, profile)
    return again


def test_a_change_of_the_profile_is_followed() -> None:
    overlay = plan(image(), Profile())
    again = Overlay(overlay)
    profile = Profile(device_group="tpu")
    for requirement in REQUIREMENTS:
        requirement.plan(again, profile)
    assert {r.inspect(again, profile).status for r in REQUIREMENTS} == {Status.PASS}
    assert "/etc/udev/rules.d/99-tpu-image.rules" not in again.written


def test_rules_of_the_owner_in_the_documents_file_stay_and_ours_go_beside_them() -> None:
    mine = 'SUBSYSTEM=="usb", MODE="0640"\n'
    overlay = plan(image({vfio.RULES_FILE: mine, device_nodes.RULES_FILE: mine}), Profile())
    assert overlay.read_text(vfio.RULES_FILE) == overlay.read_text(device_nodes.RULES_FILE) == mine
    assert overlay.read_text("/etc/udev/rules.d/99-tpu-image-vfiopci.rules") == vfio.render_rules()
    assert overlay.read_text("/etc/udev/rules.d/99-tpu-image.rules") == device_nodes.render_rules(Profile())


def test_a_mask_is_taken_away() -> None:
    overlay = plan(image({vfio.RULES_FILE: Symlink("/dev/null")}), Profile())
    assert isinstance(overlay.written[vfio.RULES_FILE], File)


LINES = st.sampled_from(
    [
        *vfio_recipe.BIND_RULES.splitlines(),
        vfio_recipe.ACCEL_RULES.strip(),
        'KERNEL=="accel*", MODE="0660", GROUP="render"',
        'SUBSYSTEM=="vfio", MODE="0600"',
        'SUBSYSTEM=="vfio", PROGRAM=="/bin/x", MODE="0600"',
        'SUBSYSTEM=="vfio-dev", GROUP="kvm", MODE="0640"',
        'SUBSYSTEM=="pci", ATTR{vendor}=="0x1ae0", TAG="x"',
        'SUBSYSTEM=="pci", ENV{A}="$attr{class}"',
        'ACTION!="add", GOTO="end"',
        'LABEL="end"',
        "broken",
        "# comment",
        "",
        'RUN+="/bin/x", \\',
        'MODE="0666"',
    ]
)
TEXTS = st.lists(LINES, max_size=6).map(lambda lines: "\n".join([*lines, ""]))
FILES = st.dictionaries(
    st.sampled_from(
        [
            vfio.RULES_FILE,
            device_nodes.RULES_FILE,
            "/etc/udev/rules.d/00-first.rules",
            "/etc/udev/rules.d/99-zz-last.rules",
            "/usr/lib/udev/rules.d/99-tpu.rules",
        ]
    ),
    TEXTS,
    max_size=4,
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(FILES, st.sampled_from(["", "tpu"]))
def test_apply_works_on_any_rules_and_loses_no_line_of_their_owner(files: dict[str, str], group: str) -> None:
    profile = Profile(device_group=group)
    overlay = plan(image(dict(files)), profile)
    for requirement in REQUIREMENTS:
        verdict = requirement.inspect(overlay, profile)
        assert verdict.status in (Status.PASS, Status.WARN), f"{requirement.id}: {shown(verdict)}"
    assert applied(plan_again(overlay, profile)) == {}
    known = vfio_recipe.BIND_RULES + vfio_recipe.ACCEL_RULES
    for path, text in files.items():
        after = overlay.read_text(path).replace(",", "").replace(" ", "")
        for line in text.splitlines():
            plain = line.replace(",", "").replace(" ", "")
            assert plain in after or line in known or line.startswith(("#", 'KERNEL=="accel*"')), (path, line)
