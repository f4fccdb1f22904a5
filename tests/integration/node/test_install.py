"""deploy/install.sh on a root of its own: what it makes, what it leaves alone, and the ways back."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.node.service import need_root
from tests.readme import ROOT

# A tree above this machine's own whose changes are nobody's, in a mount namespace that ends with the commands.
INSIDE = """\
trap 'exit 77' ERR
mount -t tmpfs -o mode=755 tmpfs "$PLACE"
mkdir "$PLACE/upper" "$PLACE/work" "$PLACE/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$PLACE/upper,workdir=$PLACE/work" "$PLACE/root"
for each in dev proc sys; do mount --rbind /$each "$PLACE/root/$each"; done
mount -t tmpfs -o mode=755 tmpfs "$PLACE/root/run"
mount --bind "$CHECKOUT" "$PLACE/root/mnt"
trap - ERR
exec chroot "$PLACE/root" bash -euo pipefail -c "$COMMANDS"
"""
# It makes environments as venv and pip do, without fetching anything.
PYTHON = f"""\
#!/bin/bash
case $1$2 in
  -mvenv) mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;
  -mpip)
    program=${{0%/*}}/stallwatch packages=${{0%/*}}/packages
    touch "$packages"
    if [ "$3" = list ]; then cat "$packages"; exit; fi
    for each in "${{@:4}}"; do case $each in [a-z]*[a-z]) echo "$each==1.0" >> "$packages" ;; esac; done
    printf '#!/bin/sh\\nPYTHONPATH=/mnt/monitor exec {sys.executable} -m stallwatch.cli "$@"\\n' > "$program"
    chmod +x "$program" ;;
  *) exec {sys.executable} "$@" ;;
esac
"""


def on_a_root_of_its_own(place: Path, commands: str) -> str:
    need_root()
    if not all(map(shutil.which, ("unshare", "chroot", "systemctl", "systemd-sysusers", "systemd-tmpfiles"))):
        pytest.skip("needs unshare, chroot and systemd's tools")
    checkout = place / "checkout"
    checkout.mkdir(mode=0o755)
    for name in ("deploy", "monitor"):
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
    (checkout / "python").write_text(PYTHON)
    (checkout / "python").chmod(0o755)
    (place / "mount").mkdir()
    done = subprocess.run(
        ["unshare", "--mount", "bash", "-c", INSIDE], capture_output=True, text=True, timeout=100, check=False,
        env={
            "PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "PYTHON": "/mnt/python",
            "PLACE": str(place / "mount"), "CHECKOUT": str(checkout), "COMMANDS": commands,
        },
    )  # fmt: skip
    if done.returncode == 77 or done.stderr.startswith("unshare"):
        pytest.skip(f"no mount namespace or overlay here: {done.stderr}")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_installing_twice_loses_nothing(tmp_path: Path) -> None:
    said = on_a_root_of_its_own(
        tmp_path,
        """
        bash /mnt/deploy/install.sh
        echo https://hooks.example/1 > /etc/stallwatch/slack-url
        printf '[slack]\\nwebhook_url_file = "/etc/stallwatch/slack-url"\\n' > /etc/stallwatch/config.toml
        mkdir -p /var/lib/stallwatch/incidents/one
        sed -i 's/^__version__ = .*/__version__ = "99.1.0"/' /mnt/monitor/stallwatch/__init__.py
        bash /mnt/deploy/install.sh
        cat /etc/stallwatch/slack-url; grep -c slack-url /etc/stallwatch/config.toml; ls /var/lib/stallwatch/incidents
        stat -c '%n %a %G' /etc/stallwatch/* /run/stallwatch/ranks; stallwatch --version; readlink /opt/stallwatch
        readlink /usr/local/bin/py-spy
        systemctl is-enabled stallwatch stallwatch-privileged.service stallwatch-privileged.socket
        """,
    )
    assert "\n/opt/stallwatch/bin/py-spy\n" in said, "what a verdict's steps say must be there to be run"
    assert said.startswith("https://hooks.example/1\n1\none\n")
    assert "/etc/stallwatch/config.toml 640 stallwatch\n" in said
    assert "/run/stallwatch/ranks 1777 stallwatch\n" in said
    assert "stallwatch, version 99.1.0\nstallwatch-99.1.0-" in said
    assert said.endswith("enabled\n" * 3)


def test_an_upgrade_brings_along_what_the_operator_added_and_no_more(tmp_path: Path) -> None:
    said = on_a_root_of_its_own(
        tmp_path,
        """
        bash /mnt/deploy/install.sh; cat /opt/stallwatch/bin/packages
        echo s3fs==2.0 >> /opt/stallwatch/bin/packages
        bash /mnt/deploy/install.sh; cat /opt/stallwatch/bin/packages
        bash /mnt/deploy/install.sh; cat /opt/stallwatch/bin/packages
        """,
    )
    assert said == "s3fs==1.0\n" * 2


def test_a_rollback_brings_the_version_before_back_and_its_units(tmp_path: Path) -> None:
    said = on_a_root_of_its_own(
        tmp_path,
        """
        bash /mnt/deploy/install.sh
        sed -i 's/^__version__ = .*/__version__ = "99.1.0"/' /mnt/monitor/stallwatch/__init__.py
        echo '# newer' >> /mnt/deploy/systemd/stallwatch.service
        bash /mnt/deploy/install.sh; grep -c newer /etc/systemd/system/stallwatch.service
        bash /mnt/deploy/install.sh --rollback; grep -c newer /etc/systemd/system/stallwatch.service || true
        readlink /opt/stallwatch; bash /mnt/deploy/install.sh --rollback; readlink /opt/stallwatch
        """,
    )
    newer, older, before, after = said.splitlines()
    assert (newer, older) == ("1", "0")
    assert not before.startswith("stallwatch-99.1.0")
    assert after.startswith("stallwatch-99.1.0")


def test_uninstalling_keeps_what_is_the_operators_and_purging_does_not(tmp_path: Path) -> None:
    said = on_a_root_of_its_own(
        tmp_path,
        """
        bash /mnt/deploy/install.sh; mkdir -p /var/lib/stallwatch
        bash /mnt/deploy/install.sh --uninstall; ls -d /etc/stallwatch/config.toml /var/lib/stallwatch
        ls -d /opt/stallwatch* /usr/local/bin/{stallwatch,py-spy} 2>/dev/null || echo none
        ls -d /etc/systemd/system/stallwatch* /etc/systemd/system/*/stallwatch* 2>/dev/null || echo none
        echo own > /usr/local/bin/py-spy
        bash /mnt/deploy/install.sh; bash /mnt/deploy/install.sh --purge
        ls -d /etc/stallwatch /var/lib/stallwatch 2>/dev/null || echo none
        cat /usr/local/bin/py-spy
        """,
    )
    assert said == "/etc/stallwatch/config.toml\n/var/lib/stallwatch\nnone\nnone\nnone\nown\n"
