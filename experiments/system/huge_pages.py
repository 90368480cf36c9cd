"""Makes malloc use huge pages.

It imports nothing that takes time, so that a command can start itself again at once.
"""

import os
import platform
import sys


def use_huge_pages() -> None:
    """Makes malloc of every process started from now on use huge pages.

    A value that the user has set stays. XLA on a CPU page-faults each large temporary, 4 to
    7 GB/s against 26 to 29 with this. glibc reads it only when a process starts.
    """
    os.environ.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")


def restart_with_huge_pages() -> None:
    """Starts this same command again with huge pages, once, where the C library is glibc."""
    # The variable is set by then, so the second start goes on.
    if platform.libc_ver()[0] == "glibc" and "GLIBC_TUNABLES" not in os.environ:
        use_huge_pages()
        # orig_argv has Python's own options, such as -m. The process keeps its number,
        # so that a scheduler's signals still reach it.
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
