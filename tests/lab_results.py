"""Results of boots, for tests of what reads them."""

from __future__ import annotations

from dataclasses import replace

from tpu_image.catalogue.requirement import Evidence, Profile, Status, Verdict
from tpu_image.lab.result import (
    ApiStep,
    Artefact,
    BootResult,
    BootTask,
    BootTimes,
    Device,
    Emulator,
    GuestReport,
    LockedMemory,
    MetadataRequest,
    Node,
    Outcome,
    RunResult,
    Stage,
    UnitTime,
)

STEPS = tuple(
    ApiStep("group", name, ok=True)
    for name in (
        "open container",
        "open group",
        "SET_IOMMU",
        "GET_DEVICE_FD",
        "read config",
        "MAP_DMA",
        "RESET",
    )
)


def device(address: str = "0000:00:08.0", group: str = "5", steps: tuple[ApiStep, ...] = STEPS) -> Device:
    """A v6e function that is bound and was used."""
    node = Node(f"/dev/vfio/{group}", 0o666, 0, 0)
    return Device(address, "v6e", 0x1AE0, 0x6F, 0x1AE0, 0xD1, "vfio-pci", group, (node,), steps)


GUEST = GuestReport(
    kernel="6.1.0-57-cloud-amd64",
    system="Debian GNU/Linux 12 (bookworm)",
    command_line="root=/dev/sda1 idle=poll intel_iommu=on,sm_on transparent_hugepage=always",
    user="nobody",
    settled=True,
    devices=(device(), device("0000:00:09.0", "6")),
    tasks=(BootTask("tpu-image-environment.service", "active", "success", "written", 70.0, 70.8),),
    times=BootTimes(
        kernel=28.0,
        initrd=6.0,
        userspace=60.0,
        blame=(UnitTime("cloud-init.service", 12.5),),
        critical_chain=("graphical.target @80s",),
        ours=0.8,
    ),
    locked_memory=tuple(LockedMemory(who, ok=True) for who in ("login", "service", "root")),
    run=(RunResult("id", 0, "uid=0(root)\n", 0.1),),
)

RESULT = BootResult(
    Artefact("tpu.tar.gz", 222_000_000, "0" * 64, "0" * 64),
    Profile(),
    "v6e:2",
    Emulator("11.1.3", "tcg", "this machine has no /dev/kvm", "bios", 2, 2048),
    Outcome.REPORTED,
    "",
    95.5,
    (Verdict("machine.devices", Status.PASS, "2 v6e chips, bound, with open device nodes"),),
    GUEST,
    (Stage("firmware", 0.4), Stage("kernel", 3.0)),
    (MetadataRequest(40.0, "GET", "/computeMetadata/v1/instance/attributes/tpu-env", 200),),
    "[ 0.0] Linux version 6.1.0\r\nhost login: ",
)

FAILED = replace(
    RESULT, verdicts=(*RESULT.verdicts, Verdict("lab.usable", Status.FAIL, "no", (), "do something"))
)

TIMED_OUT = replace(
    RESULT,
    outcome=Outcome.TIMED_OUT,
    reason="no complete report within 900 s; it had come to: kernel",
    verdicts=(
        Verdict(
            "lab.boot", Status.FAIL, "no complete report", (Evidence("/dev/console", found="stuck"),), "look"
        ),
    ),
    guest=GuestReport(),
)
