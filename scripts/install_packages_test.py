#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of install_packages.sh with stand-ins for dpkg-query, apt-get, sudo and id, so that nothing is installed."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parent / "install_packages.sh"
LIST = """# comment
alpha
beta-dev

gamma command=gamma-tool
delta group=lint
"""
# apt-get and sudo write what they were asked into the file `calls`.
APT_GET = '#!/bin/bash\necho "apt-get $*" >>"$CALLS"\n'
SUDO = '#!/bin/bash\necho "sudo $*" >>"$CALLS"\n[[ $1 == -n ]] && shift\nexec "$@"\n'
SUDO_WITH_PASSWORD = '#!/bin/bash\nexit 1\n'


class InstallPackages(unittest.TestCase):
    def run_script(self, installed, *groups, uid=0, sudo=None, tools=(), dpkg=True, **environment):
        """Runs the script where `installed` lines are dpkg's answer; returns (status, output, calls)."""
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            bin_dir = root / "bin"
            bin_dir.mkdir()
            for tool in ("bash", "dirname", "env", "cat", "true"):
                (bin_dir / tool).symlink_to(shutil.which(tool))
            stubs = {"apt-get": APT_GET, "id": f"#!/bin/bash\necho {uid}\n", **{tool: "#!/bin/bash\n" for tool in tools}}
            if dpkg:
                stubs["dpkg-query"] = "#!/bin/bash\ncat <<'END'\n" + "\n".join(installed) + "\nEND\n"
            if sudo is not None:
                stubs["sudo"] = sudo
            for name, text in stubs.items():
                (bin_dir / name).write_text(text)
                (bin_dir / name).chmod(0o755)
            (root / "list").write_text(LIST)
            calls = root / "calls"
            calls.touch()
            done = subprocess.run(
                [str(bin_dir / "bash"), str(SCRIPT), *groups],
                env={"PATH": str(bin_dir), "CALLS": str(calls), "GALLEY_PACKAGE_LIST": str(root / "list"), **environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            return done.returncode, done.stdout, calls.read_text().splitlines()

    ALL = ("installed alpha ", "installed beta-dev ", "installed gamma ")

    def test_nothing_missing_calls_nothing(self):
        self.assertEqual(self.run_script(self.ALL), (0, "", []))

    def test_provided_names_and_commands_will_do(self):
        installed = ("installed other alpha (= 1.2), beta-dev", "not-installed gamma ")
        self.assertEqual(self.run_script(installed, tools=["gamma-tool"]), (0, "", []))

    def test_version_of_a_provided_name_is_no_name(self):
        status, output, _ = self.run_script(("installed other x (= alpha)", *self.ALL[1:]), GALLEY_INSTALL="no")
        self.assertEqual(status, 1)
        self.assertIn("install -y --no-install-recommends alpha\n", output)

    def test_root_updates_and_installs_what_is_missing(self):
        status, _, calls = self.run_script(("config-files alpha ", "installed gamma "))
        self.assertEqual(status, 0)
        self.assertEqual(len(calls), 2)
        self.assertTrue(calls[0].endswith(" update"), calls[0])
        self.assertTrue(calls[1].endswith(" install -y --no-install-recommends alpha beta-dev"), calls[1])

    def test_group_is_installed_when_asked_for(self):
        _, _, calls = self.run_script(self.ALL, "lint")
        self.assertTrue(calls[1].endswith(" delta"), calls)

    def test_user_with_passwordless_sudo_installs(self):
        status, _, calls = self.run_script(self.ALL[1:], uid=1000, sudo=SUDO)
        self.assertEqual(status, 0)
        self.assertIn("sudo -n env DEBIAN_FRONTEND=noninteractive apt-get", calls[-2])
        self.assertTrue(calls[-1].endswith(" alpha"), calls)

    def test_user_without_rights_gets_one_line(self):
        for sudo, start in ((None, "  apt-get update"), (SUDO_WITH_PASSWORD, "  sudo sh -c 'apt-get update")):
            with self.subTest(start):
                status, output, calls = self.run_script(self.ALL[2:], uid=1000, sudo=sudo)
                self.assertEqual((status, calls), (1, []))
                lines = [line for line in output.splitlines() if line.startswith(start)]
                self.assertEqual(len(lines), 1, output)
                self.assertIn("alpha beta-dev", lines[0])

    def test_failed_installation_fails(self):
        # This sudo lets `true` pass and nothing else.
        status, _, _ = self.run_script(self.ALL[1:], uid=1000, sudo='#!/bin/bash\n[[ $2 == true ]]\n')
        self.assertEqual(status, 1)

    def test_other_systems_get_the_list(self):
        status, output, calls = self.run_script((), dpkg=False)
        self.assertEqual((status, calls), (1, []))
        self.assertIn("gamma-tool", output)
        self.assertIn("alpha beta-dev gamma", output)
        self.assertEqual(self.run_script((), dpkg=False, tools=["gamma-tool"])[0], 0)


if __name__ == "__main__":
    unittest.main()
