"""Names of environment variables: which ones shells accept, and which ones are not free for settings.

Runs on Python 3.8 too: the boot runtime uses it.
"""

from __future__ import annotations

READONLY_IN_SHELLS = ("EUID", "PPID", "UID")
"""Names whose assignment is an error in bash that ends the reading of a sourced file.

bash has three more (``readonly -p``); those are reserved, since they change how a shell works.
"""

_NAME_START = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_")
NAME_CHARACTERS = _NAME_START | frozenset("0123456789")

# Search paths, start files, prompts (expanded, so executed) and variables that change by themselves: bash(1).
_SHELL = """
    CDPATH DIRSTACK ENV EPOCHREALTIME EPOCHSECONDS EXECIGNORE FCEDIT FIGNORE FUNCNAME FUNCNEST
    GLOBIGNORE GROUPS HOSTTYPE IFS INPUTRC LINENO MACHTYPE MAIL MAILCHECK MAILPATH OPTARG OPTERR OPTIND
    OSTYPE PATH PIPESTATUS POSIXLY_CORRECT PROMPT_COMMAND PROMPT_DIRTRIM PS0 PS1 PS2 PS3 PS4 RANDOM
    REPLY SECONDS SHELLOPTS SHLVL SRANDOM TIMEFORMAT TMOUT _
"""

# environ(7), login(1) and the programs they start.
_LOGIN = """
    EDITOR HOME LESSCLOSE LESSOPEN LOGNAME OLDPWD PAGER PWD SHELL TERM TERMCAP TERMINFO TMPDIR USER
    VISUAL
"""

# ld.so(8), what the C library ignores for set-user-ID programs, and language run-times.
_LIBRARIES = """
    GCONV_PATH GETCONF_DIR HOSTALIASES JAVA_TOOL_OPTIONS LOCALDOMAIN LOCPATH NLSPATH NODE_OPTIONS
    RES_OPTIONS RUBYLIB RUBYOPT TZDIR
"""

# systemd.exec(5), "Environment variables set or propagated by the service manager".
_SERVICE_MANAGER = """
    CREDENTIALS_DIRECTORY INVOCATION_ID JOURNAL_STREAM MAINPID MANAGERPID NOTIFY_SOCKET WATCHDOG_PID
    WATCHDOG_USEC
"""

_RESERVED = frozenset((_SHELL + _LOGIN + _LIBRARIES + _SERVICE_MANAGER).split())

_RESERVED_FAMILIES = (
    "BASH",
    "COMP_",
    "DBUS_",
    "GIT_",
    "GLIBC_",
    "HIST",
    "LD_",
    "LISTEN_",
    "MALLOC_",
    "PERL",
    "PYTHON",
    "READLINE_",
    "SSH_",
    "SYSTEMD_",
    "XDG_",
)


def is_name(name: str) -> bool:
    """Whether shells and systemd accept it: ASCII letters, digits and ``_``, no digit first."""
    return bool(name) and name[0] in _NAME_START and NAME_CHARACTERS.issuperset(name)


def is_reserved(name: str) -> bool:
    """Whether a shell, the loader, a language, the login or the service manager gives the name a meaning."""
    return name in _RESERVED or name.startswith(_RESERVED_FAMILIES)
