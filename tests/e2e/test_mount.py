# SPDX-License-Identifier: Apache-2.0
"""Starting, ending and refusing to start."""
import os
import signal
import socket
import subprocess
import threading
import time

import pytest
from harness import MOONCAKEFS, MASTER, Master, Mount, alive, free_port, is_mounted, run, wait_until


def test_root_shows_the_tree(mount):
    assert sorted(os.listdir(mount.mnt)) == [".mooncakefs", "history", "keys", "snapshots", "tenants"]


def test_umount_ends_daemon_and_its_master(mount):
    pid, master = mount.pid(), mount.master_pid()
    mount.umount()
    wait_until(lambda: not alive(master), what="master's end")
    assert not alive(pid)
    assert not os.path.exists(os.path.join(mount.state, "master.sock"))


def test_fusermount_and_sigterm_end_it(mount):
    pid = mount.pid()
    run("fusermount3", "-u", mount.mnt)
    wait_until(lambda: not alive(pid))
    mount.remount()
    mount.kill(signal.SIGTERM)
    wait_until(lambda: not is_mounted(mount.mnt))


def test_stale_mount_point_is_cleaned(mount):
    open(mount.key("k"), "w").write("v")
    mount.kill()
    with pytest.raises(OSError):
        os.listdir(mount.mnt)
    r = mount.start()
    assert b"cleaned the stale mount" in r.stderr
    assert open(mount.key("k")).read() == "v"


def test_recover_only_cleans(mount):
    mount.kill()
    run(MOONCAKEFS, "--recover", mount.mnt)
    assert not is_mounted(mount.mnt)


def test_second_owner_is_refused_with_pid(world, mount):
    other = Mount(world, source=mount.source, name="other", state=mount.state, expect_failure=True)
    r = run(*other.command(), check=False)
    assert r.returncode == 1
    assert f"in use by process {mount.pid()}" in r.stderr.decode()
    assert r.stderr.count(b"\n") == 1
    assert not is_mounted(other.mnt)


@pytest.mark.parametrize("args,text", [
    (["-o", "tennant=a"], "did you mean 'tenant'"),
    (["-o", "rpc_timeout=abc"], "rpc_timeout"),
    (["--frobnicate"], "--frobnicate"),
])
def test_bad_options_name_themselves(world, args, text):
    os.makedirs(world.path("m"))
    r = run(MOONCAKEFS, "local:" + world.path("s"), world.path("m"), *args, check=False)
    assert r.returncode == 1 and text in r.stderr.decode(), r.stderr
    assert r.stderr.count(b"\n") == 1
    assert not is_mounted(world.path("m"))


def test_missing_mount_point(world):
    r = run(MOONCAKEFS, "local:" + world.path("s"), world.path("nowhere"), check=False)
    assert r.returncode == 1 and b"nowhere" in r.stderr


def test_missing_and_superfluous_words(world):
    assert run(MOONCAKEFS, check=False).returncode == 1
    r = run(MOONCAKEFS, "a", "b", "c", check=False)
    assert r.returncode == 1 and b"too many" in r.stderr


def test_unreachable_master(world):
    port = free_port()
    m = Mount(world, source=f"127.0.0.1:{port}", options=["rpc_timeout=1s"], expect_failure=True)
    r = run(*m.command(), check=False)
    assert r.returncode == 1
    assert f"127.0.0.1:{port}" in r.stderr.decode()
    assert not is_mounted(m.mnt)


def test_newer_state_directory_is_refused_untouched(world, mount):
    mount.umount()
    path = os.path.join(mount.state, "format")
    open(path, "w").write("mooncakefs state 99\n")
    before = sorted(os.listdir(os.path.join(mount.state, "backend")))
    r = run(*mount.command(), check=False)
    assert r.returncode == 1 and b"newer" in r.stderr and b"99" in r.stderr
    assert sorted(os.listdir(os.path.join(mount.state, "backend"))) == before
    assert open(path).read() == "mooncakefs state 99\n"


def test_help_and_version():
    assert b"SOURCE" in run(MOONCAKEFS, "-h").stdout
    assert b"FUSE library" in run(MOONCAKEFS, "-V").stdout
    assert b"rpc_port" in run(MASTER, "-h").stdout


def test_foreground_and_sd_notify(world):
    """In the foreground it says READY=1 once it serves."""
    os.makedirs(world.path("m"))
    notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notify.bind(world.path("notify"))
    notify.settimeout(20)
    p = subprocess.Popen([MOONCAKEFS, "local:" + world.path("s"), world.path("m"), "-f"],
                         env=dict(os.environ, NOTIFY_SOCKET=world.path("notify")),
                         stderr=subprocess.DEVNULL)
    world.processes.append(p)
    while b"READY=1" not in notify.recv(4096):
        pass
    assert "keys" in os.listdir(world.path("m"))
    p.send_signal(signal.SIGTERM)
    assert p.wait(20) == 0
    assert not is_mounted(world.path("m"))


def test_read_only_mount(world):
    m = Mount(world)
    open(m.key("k"), "w").write("v")
    m.umount()
    m.options.append("ro")
    m.start()
    assert open(m.key("k")).read() == "v"
    for action in (lambda: open(m.key("new"), "w"), lambda: os.unlink(m.key("k")),
                   lambda: os.mkdir(m.key("d")), lambda: open(m.key("k"), "a")):
        with pytest.raises(OSError):
            action()


def test_through_mount_commands(world):
    """mount -t fuse, fuse.mooncakefs and mooncakefs, with the programs installed."""
    build = os.environ.get("MCFS_BUILD")
    run("meson", "install", "-C", build, "--no-rebuild", "--quiet")
    state, mnt = world.path("state"), world.path("mnt")
    os.makedirs(mnt)
    for args in (["-t", "fuse.mooncakefs", f"local:{state}", mnt, "-o", "allow_other"],
                 ["-t", "mooncakefs", f"local:{state}", mnt],
                 ["-t", "fuse", f"mooncakefs#local:{state}", mnt]):
        run("mount", *args)
        assert is_mounted(mnt), args
        pid = int(open(os.path.join(state, "lock")).read())
        open(mnt + "/keys/k", "w").write(" ".join(args))
        assert open(mnt + "/keys/k").read() == " ".join(args)
        run("umount", mnt)
        wait_until(lambda: not alive(pid))
    env = dict(os.environ, MOONCAKE_OFFLOAD_FILE_STORAGE_PATH=state)
    run("mount", "-t", "fuse", "mooncakefs", mnt, env=env)
    pid = int(open(os.path.join(state, "lock")).read())
    assert "keys" in os.listdir(mnt)
    run("umount", mnt)
    wait_until(lambda: not alive(pid))


def test_ordinary_user(world):
    """A user without privileges mounts through fusermount3, reads and writes."""
    os.chmod("/dev/fuse", 0o666)
    home = world.path("home")
    os.makedirs(home + "/mnt")
    run("chown", "-R", "65534:65534", home)
    os.chmod(world.dir.name, 0o755)
    as_user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    run(*as_user, MOONCAKEFS, f"local:{home}/state", f"{home}/mnt")
    try:
        script = ("set -e; cd mnt/keys; echo hello > a; test \"$(cat a)\" = hello; mkdir d; "
                  "cp a d/b; mv d/b c; rm a; ls -l; test \"$(ls)\" = \"$(printf 'c\\nd')\"")
        run(*as_user, "sh", "-c", f"cd {home}; {script}")
    finally:
        pid = int(open(f"{home}/state/lock").read())
        run(*as_user, "fusermount3", "-u", f"{home}/mnt")
        wait_until(lambda: not alive(pid))


def test_supervised_master_is_started_again(mount):
    """Requests wait while a standalone node's master is away, and go on."""
    open(mount.key("before"), "w").write("1")
    old = mount.master_pid()
    os.kill(old, signal.SIGKILL)
    assert open(mount.key("before")).read() == "1"
    open(mount.key("after"), "w").write("2")
    assert mount.master_pid() != old
    assert sorted(os.listdir(mount.keys)) == ["after", "before"]


def test_unmount_under_load_ends(mount):
    stop = threading.Event()

    def work(i):
        n = 0
        while not stop.is_set():
            try:
                with open(mount.key(f"w{i}-{n % 20}"), "wb") as f:
                    f.write(os.urandom(10000))
                n += 1
            except OSError:
                return

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    pid = mount.pid()
    for t in threads:
        t.start()
    time.sleep(0.3)
    run("umount", "-l", mount.mnt)
    stop.set()
    for t in threads:
        t.join()
    wait_until(lambda: not alive(pid), what="daemon's end")
