"""Let the real pam_env read a file: libpam through ctypes, with a service of our own."""

from __future__ import annotations

import ctypes
import tempfile
from pathlib import Path

PAM_SUCCESS = 0
PAM_CONV_ERR = 19


class Conversation(ctypes.Structure):
    """``struct pam_conv``; nothing here ever asks a question."""

    _callback = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
    )
    _fields_ = (("conv", _callback), ("appdata_ptr", ctypes.c_void_p))

    @classmethod
    def silent(cls) -> Conversation:
        return cls(cls._callback(lambda *_: PAM_CONV_ERR), None)


def library() -> ctypes.CDLL:
    pam = ctypes.CDLL("libpam.so.0")  # package libpam0g, with libpam-modules
    pam.pam_getenvlist.restype = ctypes.POINTER(ctypes.c_char_p)
    return pam


def read(content: bytes) -> dict[str, str]:
    """The variables that a session gets from an environment file."""
    pam = library()
    handle = ctypes.c_void_p()
    conversation = Conversation.silent()
    with tempfile.TemporaryDirectory() as folder:
        file, service = Path(folder, "environment"), Path(folder, "tpu-image-test")
        file.write_bytes(content)
        service.write_text(f"session required pam_env.so readenv=1 conffile=/dev/null envfile={file}\n")
        started = pam.pam_start_confdir(
            service.name.encode(), b"root", ctypes.byref(conversation), folder.encode(), ctypes.byref(handle)
        )
        assert started == PAM_SUCCESS
        try:
            assert pam.pam_open_session(handle, 0) == PAM_SUCCESS
            return entries(pam.pam_getenvlist(handle))
        finally:
            pam.pam_end(handle, PAM_SUCCESS)


def entries(array: ctypes._Pointer[ctypes.c_char_p]) -> dict[str, str]:
    found: dict[str, str] = {}
    index = 0
    while (entry := array[index]) is not None:
        name, _, value = entry.decode("utf-8", "surrogateescape").partition("=")
        found[name] = value
        index += 1
    return found
