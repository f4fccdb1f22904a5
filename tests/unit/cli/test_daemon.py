import errno
import os
import sys

from stallwatch.cli.daemon import no_store

STATE = "/var/lib/stallwatch"


def test_a_store_that_cannot_be_made_names_the_folder() -> None:
    refusal = no_store(PermissionError(errno.EACCES, os.strerror(errno.EACCES), f"{STATE}/incidents"), STATE)
    assert str(refusal) == f"state directory {STATE}/incidents: Permission denied"


def test_an_interpreter_that_the_service_cannot_run_is_no_fault_of_the_folder() -> None:
    refusal = no_store(PermissionError(errno.EACCES, os.strerror(errno.EACCES), sys.executable), STATE)
    assert str(refusal).startswith(f"{sys.executable}: Permission denied")
    assert "every user may run" in refusal.help
