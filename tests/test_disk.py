"""Files are written whole, and never through what somebody else put in the way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hgemm.disk import require_writable, write_atomically
from hgemm.errors import LibraryError


def test_a_file_is_replaced_whole_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    for content in (b"first", b"2"):
        write_atomically(path, content, "--keep")
        assert path.read_bytes() == content and [*tmp_path.iterdir()] == [path]


def test_a_link_is_followed_to_its_file_and_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / "link").symlink_to("file")
    write_atomically(tmp_path / "link", b"new", "--to")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "file").read_bytes() == b"new"


def test_a_pipe_is_written_to_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_atomically(path, b"through", "--to")
        assert os.read(reader, 100) == b"through" and path.is_fifo()
    finally:
        os.close(reader)


def test_where_no_file_can_be_written_both_say_so_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place, told in (("none", "none/out: No such file"), ("file", "file/out: .* choose another --csv")):
        for attempt in (require_writable, lambda path, option: write_atomically(path, b"x", option)):
            with pytest.raises(LibraryError, match=f"cannot write .*{told}"):
                attempt(tmp_path / place / "out", "--csv")
