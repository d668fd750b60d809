#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the packages of packages.txt that this system lacks: usage install_packages.sh [group …].
# With nothing missing it runs one dpkg-query and ends; apt is called, and the network used, only to install. Root
# installs directly, others through sudo; a user who can do neither gets the line to run and exit status 1.
# GALLEY_INSTALL=no never installs and only prints that line. GALLEY_PACKAGE_LIST names another list (used by tests).
set -euo pipefail

list=${GALLEY_PACKAGE_LIST:-$(dirname "${BASH_SOURCE[0]}")/packages.txt}
groups=" build $* "

packages=()
declare -A command_of=()
while read -r name fields; do
  [[ -z $name || $name == \#* ]] && continue
  group=build
  for field in $fields; do
    case $field in
      command=*) command_of[$name]=${field#command=} ;;
      group=*) group=${field#group=} ;;
      *) echo "$list: package $name has the unknown field '$field'; use command=NAME or group=NAME" >&2; exit 2 ;;
    esac
  done
  [[ $groups == *" $group "* ]] && packages+=("$name")
done <"$list"

if ! command -v dpkg-query >/dev/null; then
  # Not a Debian system: the commands can be looked for, the libraries are left to CMake's own messages.
  lacking=()
  for name in "${packages[@]}"; do
    tool=${command_of[$name]:-}
    if [[ -n $tool ]] && ! command -v "$tool" >/dev/null; then lacking+=("$tool"); fi
  done
  [[ ${#lacking[@]} -eq 0 ]] && exit 0
  echo "Commands not found: ${lacking[*]}." >&2
  echo "This system has no dpkg. Install with its own package manager what Debian calls: ${packages[*]}" >&2
  exit 1
fi

# Names that are installed or provided by an installed package, without versions and architectures.
declare -A present=()
while read -r status name provides; do
  [[ $status == installed ]] || continue
  present[$name]=1
  for other in ${provides//,/ }; do
    # A version reads "(= 1.2)": two words, neither of them a name.
    [[ $other == \(* || $other == *\) ]] || present[${other%%:*}]=1
  done
done < <(dpkg-query -W -f '${db:Status-Status} ${Package} ${Provides}\n' 2>/dev/null)

missing=()
for name in "${packages[@]}"; do
  [[ -n ${present[$name]:-} ]] && continue
  tool=${command_of[$name]:-}
  [[ -n $tool ]] && command -v "$tool" >/dev/null && continue
  missing+=("$name")
done
[[ ${#missing[@]} -eq 0 ]] && exit 0

apt_install="apt-get install -y --no-install-recommends ${missing[*]}"
as_root=()
if [[ ${GALLEY_INSTALL:-yes} == no ]]; then
  as_root=(none)
elif [[ $(id -u) -eq 0 ]]; then
  as_root=(env)
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
  as_root=(sudo -n env)
elif command -v sudo >/dev/null && [[ -t 0 && -t 2 ]]; then
  as_root=(sudo env)
else
  as_root=(none)
fi
if [[ ${as_root[0]} == none ]]; then
  {
    echo "Galley needs system packages that are not installed. As root, run this line, then make again:"
    if command -v sudo >/dev/null; then
      echo "  sudo sh -c 'apt-get update && $apt_install'"
    else
      echo "  apt-get update && $apt_install"
    fi
  } >&2
  exit 1
fi

echo "Installing: ${missing[*]}"
apt_get=("${as_root[@]}" DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300)
# A failed update (one of several sources down) still leaves lists that may do, so only the installation decides.
"${apt_get[@]}" update </dev/null >/dev/null || echo "apt-get update failed; trying with the package lists at hand" >&2
"${apt_get[@]}" install -y --no-install-recommends "${missing[@]}" </dev/null >/dev/null
