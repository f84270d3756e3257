"""Which mounts refuse a member of a group: judged on lines as kernels print them."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import ManualClock
from ftstan.base.errors import ConfigError, StoreError
from ftstan.config.options import FtOptions, MountRisk, ServerOptions
from ftstan.ft import access, mounts
from ftstan.ft.access import FileAccess
from ftstan.ft.mountcheck import check_mount, examine
from ftstan.ft.mounts import find_mount
from ftstan.stores.interface import StoreContext
from tests.mounted import number_of_mount

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ROOT = "25 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw,errors=remount-ro"
NFS42 = (
    "312 25 0:52 / /data rw,relatime shared:160 - nfs4 filer:/export/stan "
    "rw,vers=4.2,rsize=1048576,wsize=1048576,"
    "namlen=255,hard,proto=tcp,timeo=600,retrans=2,sec=sys,clientaddr=10.0.0.7,local_lock=none,addr=10.0.0.2"
)
EFS = (
    "98 25 0:44 / /data rw,relatime shared:51 - nfs4 127.0.0.1:/ "
    "rw,vers=4.1,rsize=1048576,wsize=1048576,namlen=255,"
    "hard,noresvport,proto=tcp,port=20127,timeo=600,retrans=2,sec=sys,clientaddr=127.0.0.1,local_lock=none,"
    "addr=127.0.0.1"
)
NFS3 = (
    "311 25 0:51 / /data rw,relatime shared:158 - nfs filer:/export/stan "
    "rw,vers=3,rsize=1048576,wsize=1048576,"
    "namlen=255,hard,proto=tcp,timeo=600,retrans=2,sec=sys,mountaddr=10.0.0.2,mountvers=3,mountport=20048,"
    "mountproto=udp,local_lock=none,addr=10.0.0.2"
)
NFS3_NOLOCK = NFS3.replace("hard,", "hard,nolock,").replace("local_lock=none", "local_lock=all")
CEPHFS = (
    "77 25 0:49 / /data rw,relatime shared:40 - ceph 10.0.0.3:6789:/stan "
    "rw,name=stan,secret=<hidden>,acl"
)
GLUSTER = (
    "81 25 0:50 / /data rw,relatime shared:42 - fuse.glusterfs g1:/stan "
    "rw,user_id=0,group_id=0,default_permissions,"
    "allow_other,max_read=131072"
)
SSHFS = (
    "90 25 0:53 / /data rw,nosuid,nodev,relatime shared:44 - fuse.sshfs host:/stan "
    "rw,user_id=0,group_id=0"
)
EXT4 = "40 25 259:3 / /data rw,relatime shared:30 - ext4 /dev/nvme0n1p3 rw"
OVERLAY = (
    "500 25 0:60 / /data rw,relatime - overlay overlay "
    "rw,lowerdir=/l/A:/l/B,upperdir=/u/diff,workdir=/u/work,"
    "nouserxattr"
)
LUSTRE = (
    "91 25 0:54 / /data rw,relatime shared:45 - lustre 10.0.0.9@tcp:/fs "
    "rw,checksum,localflock,lazystatfs"
)
CIFS = (
    "92 25 0:55 / /data rw,relatime shared:46 - cifs //filer/stan "
    "rw,vers=3.1.1,cache=strict,nobrl,soft"
)


@pytest.mark.parametrize(
    "line",
    [NFS3_NOLOCK, NFS42.replace("hard", "soft"), GLUSTER, LUSTRE, CIFS, SSHFS],
    ids=["nfs3", "soft", "gluster", "lustre", "cifs", "sshfs"],
)
def test_every_finding_says_what_is_wrong_and_what_to_do(line: str) -> None:
    found = list(examine(find_mount(f"{ROOT}\n{line}\n", "/data/stan"), "N\n"))
    assert found
    for finding in found:
        assert len(finding.text) > 20
        assert len(finding.hint) > 10


def risks(line: str, recover_lost_locks: str = "N\n") -> list[MountRisk | None]:
    mount = find_mount(f"{ROOT}\n{line}\n", "/data/stan")
    assert mount.point == "/data"
    return [finding.risk for finding in examine(mount, recover_lost_locks)]


@pytest.mark.parametrize(
    "line", [NFS42, EFS, CEPHFS, EXT4, OVERLAY], ids=["nfs4.2", "efs", "cephfs", "ext4", "overlay"]
)
def test_a_supported_mount_is_taken_without_a_word(line: str) -> None:
    assert risks(line) == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (NFS3, [MountRisk.NFS3]),
        (NFS3_NOLOCK, [MountRisk.NOLOCK, MountRisk.NFS3, MountRisk.LOCAL_LOCK]),
        (NFS42.replace("local_lock=none", "local_lock=posix"), [MountRisk.LOCAL_LOCK]),
        (NFS42.replace("local_lock=none", "local_lock=flock"), [MountRisk.LOCAL_LOCK]),
        (NFS42.replace("local_lock=none", "local_lock=all"), [MountRisk.LOCAL_LOCK]),
        (NFS42.replace("hard", "soft"), [MountRisk.SOFT]),
        (NFS42.replace("hard", "softerr"), [MountRisk.SOFT]),
        (
            EFS.replace("hard,noresvport", "soft,nocto,noresvport"),
            [MountRisk.SOFT, MountRisk.NOCTO],
        ),
        (NFS42.replace("hard", "hard,softreval"), []),
        # How older kernels print version 4, and how none does: without a version.
        (NFS3.replace("vers=3", "vers=4.0").replace("mountvers=3,", ""), []),
        (NFS3.replace("vers=3,", "").replace("mountvers=3,", ""), [MountRisk.NFS3]),
        (GLUSTER, [MountRisk.GLUSTER]),
        (LUSTRE, [MountRisk.LOCAL_LOCK, None]),
        (CIFS, [MountRisk.LOCAL_LOCK, None]),
        (SSHFS, [None]),
        (SSHFS.replace("fuse.sshfs", "fuse.ceph-fuse"), [None]),
        (SSHFS.replace("fuse.sshfs", "9p"), [None]),
    ],
)
def test_each_way_to_mount_is_judged(line: str, expected: list[MountRisk | None]) -> None:
    assert risks(line) == expected


@pytest.mark.parametrize("word", ["Y\n", "1\n"])
def test_a_kernel_that_takes_lost_locks_again_is_refused_for_nfs_alone(word: str) -> None:
    assert risks(NFS42, word) == [MountRisk.RECOVER_LOST_LOCKS]
    assert risks(EXT4, word) == []
    assert risks(CEPHFS, word) == []


@pytest.mark.parametrize("word", ["N\n", "0\n", ""])
def test_a_kernel_that_gives_lost_locks_up_is_not(word: str) -> None:
    assert risks(NFS42, word) == []


def test_every_risk_can_be_found() -> None:
    found = {*risks(NFS3_NOLOCK, "Y"), *risks(NFS42.replace("hard", "soft,nocto")), *risks(GLUSTER)}
    # Whether direct I/O works is seen at the first file that is opened so.
    assert found == set(MountRisk) - {MountRisk.DIRECT_IO}


@pytest.mark.parametrize("line", [NFS3_NOLOCK, NFS42.replace("hard", "soft,nocto"), GLUSTER])
def test_a_refusal_names_what_can_go_wrong_how_to_mount_and_what_to_write_to_start_all_the_same(
    line: str,
) -> None:
    mount = find_mount(f"{ROOT}\n{line}\n", "/data/stan")
    found = [finding.risk for finding in examine(mount)]
    with pytest.raises(ConfigError) as caught:
        check_mount(mount, "/data/stan", in_group=True)
    assert caught.value.text.startswith(
        f"ft: datastore /data/stan on {mount.fstype} {mount.source} mounted at /data: "
    )
    for finding in examine(mount):
        assert f"{finding.text} [{finding.risk}]" in caught.value.text
        assert finding.hint in caught.value.hint
    names = ",".join(str(risk) for risk in found)
    assert caught.value.hint.endswith(f"-ft_allow {names}")
    # What it says is what works.
    warnings = check_mount(mount, "/data/stan", in_group=True, allow=names.split(","))
    assert len(warnings) == len(found)
    assert all(
        f"(accepted by -ft_allow {risk})" in line
        for risk, line in zip(found, warnings, strict=True)
    )


def test_one_allowed_name_does_not_cover_another_risk() -> None:
    mount = find_mount(f"{ROOT}\n{NFS3_NOLOCK}\n", "/data/stan")
    with pytest.raises(ConfigError) as caught:
        check_mount(mount, "/data/stan", in_group=True, allow=["nfs3", "local_lock"])
    assert "[nolock]" in caught.value.text
    assert "[nfs3]" not in caught.value.text


def test_a_standalone_server_is_warned_and_not_refused() -> None:
    mount = find_mount(f"{ROOT}\n{NFS3_NOLOCK}\n", "/data/stan")
    warnings = check_mount(mount, "/data/stan", in_group=False)
    assert len(warnings) == 3
    assert "accepted" not in "".join(warnings)


def test_an_untried_file_system_is_a_warning_in_a_group_too() -> None:
    mount = find_mount(f"{ROOT}\n{SSHFS}\n", "/data/stan")
    (line,) = check_mount(mount, "/data/stan", in_group=True)
    assert "FUSE" in line


def test_reading_through_the_cache_is_never_silent() -> None:
    network, local = (find_mount(f"{ROOT}\n{line}\n", "/data/stan") for line in (NFS42, EXT4))
    (line,) = check_mount(network, "/data/stan", in_group=True, allow=["direct_io"])
    assert "through this host's cache" in line
    assert check_mount(local, "/data/stan", in_group=True, allow=["direct_io"]) == []


def context(path: Path, **changes: object) -> StoreContext:
    options = ServerOptions(store="FILE", dir=str(path), ft_group="group")
    return StoreContext(replace(options, **changes), "ME", ManualClock())  # type: ignore[arg-type]


class TestAtTheStartOfAServer:
    @pytest.fixture(autouse=True)
    def _mounted(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        # The mount of the test's directory is one of NFS.
        ident = number_of_mount(tmp_path)
        line = NFS42.replace("312 ", f"{ident} ", 1).replace("hard", "soft")
        monkeypatch.setattr(mounts, "read_mountinfo", lambda: f"{ROOT}\n{line}\n")
        self.parameter = tmp_path / "recover_lost_locks"
        monkeypatch.setattr(access, "_RECOVER_LOST_LOCKS", str(self.parameter))

    def test_a_member_is_refused_before_anything_is_made(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"\[soft\]"):
            FileAccess(context(tmp_path / "store"))
        assert list(tmp_path.iterdir()) == []

    def test_the_parameter_of_the_module_is_read(self, tmp_path: Path) -> None:
        self.parameter.write_text("Y\n")
        with pytest.raises(ConfigError, match=r"\[recover_lost_locks\]"):
            FileAccess(context(tmp_path / "store", ft=FtOptions(allow=("soft",))))

    def test_an_allowed_member_and_a_standalone_server_start_with_a_warning(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        FileAccess(context(tmp_path / "a", ft=FtOptions(allow=("soft",)))).close()
        FileAccess(context(tmp_path / "b", ft_group="")).close()
        shown = capfd.readouterr().err
        assert shown.count("it is mounted soft") == 2
        assert shown.count("(accepted by -ft_allow soft)") == 1

    def test_without_direct_io_the_epoch_is_read_only_if_the_operator_says_so(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real: Callable[..., int] = os.open

        def refuse(name: str, flags: int, *more: object, **named: object) -> int:
            if flags & os.O_DIRECT:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            return real(name, flags, *more, **named)

        monkeypatch.setattr(os, "open", refuse)
        strict = FileAccess(context(tmp_path / "a", ft=FtOptions(allow=("soft",))))
        strict.lock().acquire()
        with pytest.raises(StoreError, match="refuses direct I/O"):
            strict.activate()
        strict.close()
        lenient = FileAccess(context(tmp_path / "b", ft=FtOptions(allow=("soft", "direct_io"))))
        lenient.lock().acquire()
        lenient.activate()
        lenient.owner.confirm()
        lenient.close()
