"""machine.limits: the login that checks, and the services that run."""

from __future__ import annotations

import pytest

from tpu_image.catalogue.limits_live import MachineLimits
from tpu_image.catalogue.requirement import Profile, Status, Verdict
from tpu_image.trees.memory import File, MemoryTree

GOOD = ("100000", "unlimited")
LOW = ("1024", "8388608")


def limits(values: tuple[str, str]) -> str:
    files, memory = values
    return (
        "Limit                     Soft Limit           Hard Limit           Units\n"
        f"Max open files            {files:<20} 524288               files\n"
        f"Max locked memory         {memory:<20} {memory:<20} bytes\n"
    )


def process(number: int, cgroup: str, values: tuple[str, str]) -> dict[str, str]:
    return {f"/proc/{number}/cgroup": cgroup, f"/proc/{number}/limits": limits(values)}


def service(number: int, name: str, values: tuple[str, str]) -> dict[str, str]:
    return process(number, f"0::/system.slice/{name}\n", values)


def observe(*parts: dict[str, str], login: tuple[str, str] = GOOD) -> Verdict:
    files = {"/proc/self/limits": limits(login)}
    for part in parts:
        files.update(part)
    tree = MemoryTree({path: File(text.encode()) for path, text in files.items()})
    return MachineLimits().observe(tree, Profile())


def test_a_login_and_services_with_enough_hold() -> None:
    verdict = observe(service(9, "a.service", GOOD), service(10, "b.service", GOOD))
    assert verdict.status is Status.PASS
    assert "2 services" in verdict.message


@pytest.mark.parametrize("values", [("99999", "unlimited"), ("unlimited", "9223372036854775807"), LOW])
def test_a_login_with_less_fails(values: tuple[str, str]) -> None:
    verdict = observe(service(9, "a.service", GOOD), login=values)
    assert verdict.status is Status.FAIL
    assert verdict.message.startswith("this login: ")


def test_without_proc_nothing_is_known() -> None:
    verdict = MachineLimits().observe(MemoryTree(), Profile())
    assert verdict.status is Status.UNKNOWN


@pytest.mark.parametrize(
    "cgroup",
    [
        "0::/system.slice/a.service\n",
        "0::/system.slice/system-a.slice/a.service/supervisor\n",
        "12:pids:/x\n1:name=systemd:/system.slice/a.service\n",
    ],
)
def test_a_service_with_less_warns(cgroup: str) -> None:
    verdict = observe(process(9, cgroup, LOW))
    assert verdict.status is Status.WARN
    assert "a.service" in verdict.message
    assert {evidence.path for evidence in verdict.evidence} == {"/proc/9/limits"}


@pytest.mark.parametrize(
    "cgroup",
    ["0::/user.slice/user-1000.slice/x.service\n", "0::/system.slice/a.scope\n", "0::/init.scope\n", ""],
)
def test_what_is_no_system_service_is_not_judged(cgroup: str) -> None:
    assert observe(process(9, cgroup, LOW)).status is Status.PASS


def test_a_limit_of_the_services_own_is_its_own_affair() -> None:
    low = service(9, "a.service", LOW)
    unit = {"/usr/lib/systemd/system/a.service": "[Service]\nLimitNOFILE=1024\nLimitMEMLOCK=8M\n"}
    assert observe(low, unit).status is Status.PASS
    assert observe(low, {"/usr/lib/systemd/system/a.service": "[Service]\n"}).status is Status.WARN


def test_where_no_unit_is_to_be_seen_another_service_shows_the_default() -> None:
    assert observe(service(9, "a.service", LOW), service(10, "b.service", GOOD)).status is Status.PASS


@pytest.mark.parametrize("runtime", ["docker.service", "containerd.service"])
def test_a_container_runtime_with_less_always_warns(runtime: str) -> None:
    verdict = observe(service(9, runtime, LOW), service(10, "b.service", GOOD))
    assert verdict.status is Status.WARN
    assert runtime in verdict.message
