"""Units of a tree: which file defines one, and whether it starts at boot."""

from __future__ import annotations

import pytest

from tpu_image.catalogue.systemd import Units, manager_configuration
from tpu_image.trees.memory import File, MemoryTree, Node, Symlink

SYSTEM = "/usr/lib/systemd/system"
ETC = "/etc/systemd/system"
BOOT = {
    "/lib": "-> usr/lib",
    f"{SYSTEM}/default.target": "-> graphical.target",
    f"{SYSTEM}/graphical.target": "[Unit]\nRequires=multi-user.target\n",
    f"{SYSTEM}/multi-user.target": "[Unit]\nRequires=basic.target\n",
    f"{SYSTEM}/basic.target": "[Unit]\n",
}
SERVICE = "[Service]\nExecStart=/usr/bin/agent --flag\n"


def node(text: str) -> Node:
    return Symlink(text[3:]) if text.startswith("-> ") else File(text.encode())


def units(files: dict[str, str]) -> Units:
    return Units(MemoryTree({path: node(text) for path, text in {**BOOT, **files}.items()}))


def commands(files: dict[str, str], name: str = "a.service") -> list[str]:
    unit = units(files).unit(name)
    return [] if unit is None else [" ".join(command.words) for command, _ in unit.commands()]


def test_the_administrators_file_hides_the_distributions() -> None:
    files = {
        f"{SYSTEM}/a.service": SERVICE,
        f"{ETC}/a.service": "[Service]\nExecStart=/usr/local/bin/agent\n",
    }
    assert commands(files) == ["/usr/local/bin/agent"]


@pytest.mark.parametrize(
    "directory",
    [f"{ETC}/a.service.d", "/run/systemd/system/a.service.d", f"{SYSTEM}/service.d"],
)
def test_a_drop_in_replaces_the_command(directory: str) -> None:
    files = {
        f"{SYSTEM}/a.service": SERVICE,
        f"{directory}/x.conf": "[Service]\nExecStart=\nExecStart=/b\n",
    }
    assert commands(files) == ["/b"]


@pytest.mark.parametrize("hiding", ["-> /dev/null", "# nothing\n"])
def test_a_drop_in_of_the_same_name_hides_the_distributions(hiding: str) -> None:
    files = {
        f"{SYSTEM}/a.service": SERVICE,
        f"{SYSTEM}/a.service.d/x.conf": "[Service]\nExecStart=\n",
        f"{ETC}/a.service.d/x.conf": hiding,
    }
    assert commands(files) == ["/usr/bin/agent --flag"]


def test_a_drop_in_of_an_alias_counts() -> None:
    files = {
        f"{SYSTEM}/ssh.service": SERVICE,
        f"{ETC}/sshd.service": "-> /lib/systemd/system/ssh.service",
        f"{ETC}/sshd.service.d/x.conf": "[Service]\nLimitNOFILE=5\n",
    }
    unit = units(files).unit("ssh.service")
    assert unit is not None
    assert [v.path for v in unit.configuration.values("Service", "LimitNOFILE")] == [
        f"{ETC}/sshd.service.d/x.conf"
    ]


def test_instances_come_from_their_template() -> None:
    files = {f"{SYSTEM}/a@.service": SERVICE, f"{ETC}/b@.service": f"-> {SYSTEM}/a@.service"}
    for name in ("a@x.service", "b@x.service"):
        unit = units(files).unit(name)
        assert unit is not None
        assert unit.name == "a@x.service"


@pytest.mark.parametrize("mask", ["-> /dev/null", "-> ../../../dev/null", ""])
def test_a_masked_unit_does_not_load(mask: str) -> None:
    files = {
        f"{SYSTEM}/a.service": SERVICE,
        f"{ETC}/a.service": mask,
        f"{ETC}/multi-user.target.wants/a.service": f"-> {SYSTEM}/a.service",
    }
    found = units(files)
    unit = found.unit("a.service")
    assert unit is not None
    assert unit.masked
    assert not found.starts_at_boot("a.service")


def test_a_linked_unit_outside_of_the_search_path_loads() -> None:
    assert commands({"/opt/a.service": SERVICE, f"{ETC}/a.service": "-> /opt/a.service"})


def test_a_link_of_another_type_is_no_alias() -> None:
    files = {f"{SYSTEM}/b.socket": "[Socket]\n", f"{ETC}/a.service": f"-> {SYSTEM}/b.socket"}
    assert units(files).unit("a.service") is None


def test_aliases_in_a_circle_are_no_unit() -> None:
    files = {f"{ETC}/a.service": "-> b.service", f"{ETC}/b.service": "-> a.service"}
    assert units(files).unit("a.service") is None


def test_a_broken_unit_is_named_and_does_not_start() -> None:
    files = {
        f"{ETC}/a.service": "[Service\nExecStart=/a\n",
        f"{ETC}/multi-user.target.wants/a.service": "-> ../a.service",
    }
    unit = units(files).unit("a.service")
    assert unit is not None
    assert unit.problem.startswith("line 1: ")
    assert not units(files).starts_at_boot("a.service")


@pytest.mark.parametrize(
    "pulled_in_by",
    [
        {f"{ETC}/multi-user.target.wants/a.service": "-> /lib/systemd/system/a.service"},
        {f"{SYSTEM}/basic.target.requires/a.service": "-> nowhere"},
        {f"{ETC}/basic.target.d/x.conf": "[Unit]\nWants=b.service a.service\n"},
        {
            f"{ETC}/multi-user.target.wants/b.service": "-> ../b.service",
            f"{ETC}/b.service": "[Unit]\nBindsTo=a.service\n",
        },
        {
            f"{ETC}/multi-user.target.wants/alias.service": "-> ../a.service",
            f"{ETC}/alias.service": "-> /usr/lib/systemd/system/a.service",
        },
        {
            f"{ETC}/multi-user.target.wants/t@a.service": "-> ../t@.service",
            f"{ETC}/t@.service": "[Unit]\nWants=%i.service\n",
        },
    ],
)
def test_a_unit_starts_at_boot_when_the_default_target_pulls_it_in(pulled_in_by: dict[str, str]) -> None:
    assert units({f"{SYSTEM}/a.service": SERVICE, **pulled_in_by}).starts_at_boot("a.service")


@pytest.mark.parametrize(
    "not_pulled_in_by",
    [
        {},
        {f"{ETC}/rescue.target.wants/a.service": f"-> {SYSTEM}/a.service"},
        {f"{ETC}/multi-user.target.wants/a.service": SERVICE},
        {f"{ETC}/multi-user.target.wants/a.service": "-> /dev/null"},
        {
            f"{SYSTEM}/multi-user.target.wants/a.service": "-> ../a.service",
            f"{ETC}/multi-user.target.wants/a.service": "-> /dev/null",
        },
        {
            f"{ETC}/graphical.target.wants/a.service": f"-> {SYSTEM}/a.service",
            f"{ETC}/default.target": f"-> {SYSTEM}/multi-user.target",
        },
        {f"{ETC}/multi-user.target.d/x.conf": "[Unit]\nAfter=a.service\nPartOf=a.service\n"},
        {
            f"{ETC}/multi-user.target.wants/b.service": "-> ../b.service",
            f"{SYSTEM}/b.service": "[Unit]\nWants=a.service\n",
            f"{ETC}/b.service": "-> /dev/null",
        },
    ],
)
def test_a_unit_that_nothing_pulls_in_does_not_start(not_pulled_in_by: dict[str, str]) -> None:
    assert not units({f"{SYSTEM}/a.service": SERVICE, **not_pulled_in_by}).starts_at_boot("a.service")


def test_the_generator_of_cloud_init_pulls_its_target_in_unless_disabled() -> None:
    files = {
        "/usr/lib/systemd/system-generators/cloud-init-generator": "x",
        f"{SYSTEM}/cloud-init.target": "[Unit]\n",
    }
    assert units(files).starts_at_boot("cloud-init.target")
    assert not units({**files, "/etc/cloud/cloud-init.disabled": ""}).starts_at_boot("cloud-init.target")


def test_templates_that_name_each_other_without_end_are_given_up() -> None:
    files = {
        f"{ETC}/multi-user.target.wants/a@0.service": "-> ../a@.service",
        f"{ETC}/a@.service": "[Unit]\nWants=a@%i0.service a@%i1.service\n",
        f"{ETC}/b.service": SERVICE,
    }
    assert not units(files).starts_at_boot("b.service")


def test_services_are_found_by_what_they_run() -> None:
    files = {
        f"{SYSTEM}/a.service": SERVICE,
        f"{SYSTEM}/b.service": "[Service]\nExecStart=/bin/b\nExecStartPre=-/usr/bin/agent\n",
        f"{SYSTEM}/c.service": "[Service]\nExecStart=/bin/c\nExecStop=/usr/bin/agent\n",
        f"{SYSTEM}/d.service": "-> a.service",
        f"{SYSTEM}/e@.service": SERVICE,
        f"{ETC}/multi-user.target.wants/e@x.service": "-> ../e@.service",
    }
    found = units(files).services_running(lambda command: command.program == "/usr/bin/agent")
    places = [(unit.name, located.path, located.line) for unit, _, located in found]
    assert places == [
        ("a.service", f"{SYSTEM}/a.service", 2),
        ("b.service", f"{SYSTEM}/b.service", 3),
        ("e@x.service", f"{SYSTEM}/e@.service", 2),
    ]
    mentioning = units(files).services_running(lambda _: True, mentioning=["agent"])
    assert [unit.name for unit, *_ in mentioning] == [
        "a.service",
        "b.service",
        "b.service",
        "c.service",
        "e@x.service",
    ]


def test_the_managers_configuration_is_read_in_order() -> None:
    tree = MemoryTree(
        {
            "/etc/systemd/system.conf": File(b"[Manager]\nA=etc\n"),
            "/usr/lib/systemd/system.conf": File(b"[Manager]\nB=hidden\n"),
            "/usr/lib/systemd/system.conf.d/50.conf": File(b"[Manager]\nA=50\n"),
            "/etc/systemd/system.conf.d/60.conf": Symlink("/dev/null"),
            "/usr/lib/systemd/system.conf.d/60.conf": File(b"[Manager]\nA=masked\n"),
            "/etc/systemd/system.conf.d/.70.conf": File(b"[Manager]\nA=dot\n"),
        }
    )
    last = manager_configuration(tree).last("Manager", "A")
    assert last is not None
    assert (last.value, last.path) == ("50", "/usr/lib/systemd/system.conf.d/50.conf")
    assert manager_configuration(tree).last("Manager", "B") is None
