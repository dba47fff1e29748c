"""Results of boots, for tests of what reads and shows them."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from reports import HOSTILE, any_text
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
    ApiStep("group", name, True, "0x006f1ae0" if name == "read config" else "")
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
CDEV_STEPS = tuple(ApiStep("cdev", name, True) for name in ("open", "bind iommufd"))
EMULATOR = Emulator("11.1.3", "tcg", "/dev/kvm does not boot a guest", "bios", 2, 4096)
ARTEFACT = Artefact("company-ubuntu-tpu.tar.gz", 976872557, "8c6f" * 16, "8c6f" * 16)


def device(slot: int = 8, *, steps: tuple[ApiStep, ...] = STEPS + CDEV_STEPS, ok: bool = True) -> Device:
    """A v6e function that is bound and was used; or one that is not, and that nobody may use."""
    address, group, mode = f"0000:00:{slot:02x}.0", str(slot - 4), 0o666 if ok else 0o600
    nodes = (Node(f"/dev/vfio/{group}", mode, 0, 0), Node(f"/dev/vfio/devices/vfio{slot - 8}", mode, 0, 0))
    if not ok:
        steps = (ApiStep("group", "open group", False, "Permission denied"),)
    driver = "vfio-pci" if ok else ""
    return Device(address, "v6e", 0x1AE0, 0x006F, 0x1AE0, 0x00D1, driver, group, nodes, steps)


VERDICTS = (
    Verdict("machine.devices", Status.PASS, "4 functions of 4 v6e chips are bound to vfio-pci"),
    Verdict("machine.limits", Status.PASS, "memlock is unlimited in a login, a service and for root"),
    Verdict("machine.environment", Status.PASS, "/home/tpu-runtime/tpu-env holds 22 variables"),
    Verdict("lab.boot", Status.PASS, "the guest reported 84 s after power-on"),
    Verdict("lab.kernel-parameters", Status.PASS, "the kernel took every parameter"),
    Verdict("gke.tools", Status.SKIP, "GKE alone needs it"),
)
PROBLEMS = (
    Verdict(
        "machine.devices",
        Status.FAIL,
        "1 of 4 functions is not bound to vfio-pci: 0000:00:0b.0",
        (Evidence("/sys/bus/pci/devices/0000:00:0b.0/driver", 0, "", "vfio-pci"),),
        "run: tpu-image build",
    ),
    Verdict(
        "lab.kernel-parameters",
        Status.FAIL,
        "the kernel rejected transparent_hugepage",
        (
            Evidence(
                "kernel log",
                0,
                "huge_memory: transparent_hugepage= cannot parse, ignored",
                "no message about transparent_hugepage",
            ),
        ),
        "run: tpu-image build",
    ),
    Verdict(
        "machine.agent",
        Status.UNKNOWN,
        "docker is not running, so no agent can be",
        (),
        "look at the console",
    ),
    Verdict("support.distribution", Status.WARN, "Debian 12 is not certified for v6e"),
)

TASKS = (
    BootTask("tpu-image-environment.service", "active", "success", "22 variables, written", 12.418, 13.031),
    BootTask("tpu-image-system-environment.service", "active", "success", "unchanged", 12.402, 12.720),
    BootTask("tpu-image-vbar.service", "inactive", "", "", None, None),
)
BLAME = tuple(
    UnitTime(unit, duration)
    for unit, duration in (
        ("cloud-init.service", 21.4),
        ("cloud-init-local.service", 11.02),
        ("snapd.seeded.service", 8.2),
        ("dev-sda1.device", 6.1),
        ("systemd-udev-settle.service", 4.9),
        ("tpu-image-environment.service", 0.613),
        ("tpu-image-system-environment.service", 0.318),
    )
)
REQUESTS = tuple(
    MetadataRequest(30.0 + place, "GET", f"/computeMetadata/v1/instance/{path}", status, fault)
    for place, (path, status, fault) in enumerate(
        (
            ("attributes/tpu-env", 0, "metadata=down:5s"),
            ("attributes/tpu-env", 200, ""),
            ("attributes/a-key-that-is-not-set", 404, ""),
            ("?recursive=true&alt=json&wait_for_change=true&timeout_sec=60&last_etag=NONE", 200, ""),
        )
    )
)
CONSOLE = (
    "SeaBIOS (version 1.16.3-debian)\r\nBooting from Hard Disk...\r\n"
    "[    0.000000] Linux version 6.8.0-1021-gcp\r\n"
    "[\x1b[0;32m  OK  \x1b[0m] Reached target \x1b[0;1;39mmulti-user.target\x1b[0m.\r\n"
    + "a line of the console\r\n"
    * 60
)


GUEST = GuestReport(
    kernel="6.8.0-1021-gcp",
    system="Ubuntu 24.04.3 LTS",
    command_line="BOOT_IMAGE=/boot/vmlinuz root=PARTUUID=8a2f ro idle=poll intel_iommu=on,sm_on "
    "transparent_hugepage=always console=ttyS0,38400n8",
    user="nobody",
    settled=True,
    devices=tuple(device(slot) for slot in range(8, 12)),
    tasks=TASKS,
    times=BootTimes(
        kernel=9.8,
        initrd=3.2,
        userspace=52.7,
        blame=BLAME,
        critical_chain=("graphical.target @52.1s", "└─multi-user.target @52.0s"),
        ours=0.62,
    ),
    locked_memory=tuple(LockedMemory(who, True, "64 MiB") for who in ("login", "service", "root")),
    run=(RunResult("python3 -c 'import jax; print(jax.devices())'", 0, "4 devices\n", 3.2),),
)

RESULT = BootResult(
    ARTEFACT,
    Profile(),
    "v6e:4",
    EMULATOR,
    Outcome.REPORTED,
    "",
    84.2,
    VERDICTS,
    GUEST,
    (Stage("boot loader", 3.1), Stage("kernel", 9.4), Stage("systemd", 19.7), Stage("report", 81.9)),
    REQUESTS,
    CONSOLE,
    ("metadata=down:5s",),
)
"""A boot that went well."""

FAILED = replace(RESULT, verdicts=(*VERDICTS, Verdict("lab.usable", Status.FAIL, "no", (), "do something")))
"""One that reported, and does not hold."""

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
    console="[    0.000000] Linux version 6.8.0-1021-gcp\r\n",
)

PANICKED = replace(
    RESULT,
    artefact=ARTEFACT._replace(sha256_after="0000" * 16),
    machine="ct6e-standard-4t",
    outcome=Outcome.PANICKED,
    reason="Kernel panic - not syncing: VFS: Unable to mount root fs on unknown-block(0,0)",
    seconds=140.0,
    verdicts=PROBLEMS,
    guest=GuestReport(
        kernel="6.1.0-37-cloud-amd64",
        system="Debian GNU/Linux 12 (bookworm)",
        command_line="BOOT_IMAGE=/boot/vmlinuz ro idle=poll intel_iommu=on transparent_hugepage=always,sm_on",
        user="nobody",
        devices=(*GUEST.devices[:3], device(11, ok=False)),
        tasks=(
            BootTask(
                "tpu-image-environment.service", "failed", "exit-code", "tpu-env: line 2: no mapping", 11, 12
            ),
        ),
        times=GUEST.times,
        failed_units=("tpu-image-environment.service", "docker.service"),
        kernel_warnings=("huge_memory: transparent_hugepage= cannot parse, ignored",),
        locked_memory=(LockedMemory("service", False, "mlock: Cannot allocate memory"),),
        run=(RunResult("sleep 1000", None, "", 60.0),),
        faults=("systemd-analyze did not answer within 30 s",),
    ),
    stages=RESULT.stages[:2],
    metadata=(),
    console=CONSOLE + "Kernel panic - not syncing: VFS: Unable to mount root fs\r\n",
    faults=(),
)
"""One of an image that was changed by hand: everything that can go wrong did."""


numbers = st.floats(-10, 1e7)
any_result = st.builds(
    BootResult,
    st.builds(Artefact, any_text, st.integers(0), any_text, any_text),
    st.just(Profile()),
    any_text,
    st.builds(Emulator, any_text, any_text, any_text, any_text, st.integers(0), st.integers(0)),
    st.sampled_from(Outcome),
    any_text,
    numbers,
    st.just(VERDICTS + PROBLEMS),
    st.builds(
        GuestReport,
        kernel=any_text,
        devices=st.lists(
            st.builds(
                Device,
                any_text,
                any_text,
                *[st.integers(0, 2**16)] * 4,
                any_text,
                any_text,
                st.lists(
                    st.builds(Node, any_text, st.integers(0, 0o7777), st.integers(), st.integers()),
                    max_size=2,
                ).map(tuple),
                st.lists(st.builds(ApiStep, any_text, any_text, st.booleans(), any_text), max_size=2).map(
                    tuple
                ),
            ),
            max_size=2,
        ).map(tuple),
        tasks=st.lists(
            st.builds(
                BootTask, any_text, any_text, any_text, any_text, st.none() | numbers, st.none() | numbers
            ),
            max_size=2,
        ).map(tuple),
        times=st.builds(
            BootTimes,
            *[st.none() | numbers] * 5,
            blame=st.lists(st.builds(UnitTime, any_text, numbers), max_size=2).map(tuple),
            critical_chain=st.lists(any_text, max_size=2).map(tuple),
            ours=st.none() | numbers,
        ),
        failed_units=st.lists(any_text, max_size=2).map(tuple),
        run=st.lists(
            st.builds(RunResult, any_text, st.none() | st.integers(), any_text, numbers), max_size=1
        ).map(tuple),
        faults=st.lists(any_text, max_size=2).map(tuple),
    ),
    st.lists(st.builds(Stage, any_text, numbers), max_size=3).map(tuple),
    st.lists(
        st.builds(MetadataRequest, numbers, any_text, any_text, st.integers(0, 999), any_text), max_size=2
    ).map(tuple),
    any_text | st.just("\n".join(HOSTILE)),
)
