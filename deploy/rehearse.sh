#!/usr/bin/env bash
# Plays the first part of docs/deployment.md on this machine: runs each of its commands as printed.
#
#   deploy/rehearse.sh [FOLDER]     what each party has at the end is copied into the new FOLDER
#
# Blocks marked `link`, `site` and `node` are run by the SuperLink's machine, by each of three sites
# and by each site's SuperNode; `carry` by whoever takes files from one to another; `everywhere` goes
# before all others. As root (where mount namespaces can be made) every party is a Unix user made for
# this and removed at the end, so that no one can read what is another's; otherwise all are one user,
# which is said. Every process is ended by its id. It can be run again at any time. VENV names
# another virtual environment.
set -euo pipefail
umask 022

HERE=$(cd "$(dirname "$0")/.." && pwd)
BIN=${VENV:-$HERE/.venv}/bin
SITES=(north middle south)

# -- the frame: a folder, and a mount namespace in which others may enter what they need ------------
if [ -z "${REHEARSAL_ROOT:-}" ]; then
  results=${1:-}
  if [ -n "$results" ] && ! mkdir "$results"; then exit 2; fi
  root=$(mktemp -d /tmp/manifed-rehearsal.XXXXXX)
  chmod 755 "$root"
  frame=()
  if [ "$(id -u)" -eq 0 ] && unshare --mount true 2> /dev/null; then
    frame=(env REHEARSAL_USERS=yes unshare --mount --propagation private)
  fi
  code=0
  REHEARSAL_ROOT=$root "${frame[@]}" "$0" &
  inner=$!
  trap 'kill -TERM "$inner" 2> /dev/null || true' INT TERM HUP
  wait "$inner" || code=$?
  while kill -0 "$inner" 2> /dev/null; do wait "$inner" || code=$?; done
  if [ -n "$results" ] && [ -d "$root/parties" ]; then
    cp -r --no-preserve=ownership "$root/parties/." "$results"
  fi
  rm -rf "$root" # its mounts were the inner script's own
  exit "$code"
fi
ROOT=$REHEARSAL_ROOT
HAS_USERS=${REHEARSAL_USERS:-}
MARK=MANIFED_REHEARSAL=$(basename "$ROOT")
PARTIES=$ROOT/parties
mkdir "$PARTIES"

# outermost PATH: the outermost folder above it that others may not enter; nothing if there is none.
outermost() {
  local at=$1 found=
  while [ "$at" != / ]; do
    at=$(dirname "$at")
    [ $((0$(stat -c %a "$at") & 1)) -eq 1 ] || found=$at
  done
  echo "$found"
}

# show PATH...: these, and nothing beside them, can be reached by everybody in this namespace.
show() {
  local path top kept
  local -A below=()
  for path in "$@"; do
    top=$(outermost "$path")
    [ -z "$top" ] || below[$top]+="$path"$'\n'
  done
  for top in "${!below[@]}"; do
    kept=$(mktemp -d "$ROOT/shown.XXXXXX")
    chmod 755 "$kept"
    while IFS= read -r path; do
      mkdir -p "$kept${path#"$top"}"
      mount --bind "$path" "$kept${path#"$top"}"
    done < <(printf %s "${below[$top]}" | sort)
    mount --rbind "$kept" "$top"
  done
}

# -- who is who ------------------------------------------------------------------------------------
declare -A USER_OF
MADE=()
party() { # party NAME [GROUP]: a folder of its own, and a user of its own if we may make one
  local user=
  if [ -n "$HAS_USERS" ]; then
    user=mf$$-$1
    useradd --system --no-create-home --home-dir "$PARTIES/$1" --shell /usr/sbin/nologin \
      ${2:+--groups "$2"} "$user"
    MADE=("$user" "${MADE[@]}") # a group goes after its members
  fi
  USER_OF[$1]=$user
  mkdir -m 700 "$PARTIES/$1"
  [ -z "$user" ] || chown "$user:$user" "$PARTIES/$1"
}

finish() {
  local code=$?
  trap - EXIT
  trap '' INT TERM HUP
  PYTHONPATH=$HERE "$BIN/python" -c \
    'import sys; from app.process_tree import end_family; end_family(sys.argv[1], [], 5.0)' "$MARK"
  [ "$code" -eq 0 ] || tail -n 15 "$PARTIES"/*/*.log >&2
  for user in "${MADE[@]}"; do userdel "$user"; done
  exit "$code"
}
trap finish EXIT
trap 'exit 143' TERM
trap 'exit 130' INT
trap 'exit 129' HUP

# as NAME FOLDER BLOCK [VARIABLE=VALUE...]: one party runs one block of the page.
as() {
  local name=$1 folder=$2 block=$3 who=()
  shift 3
  [ -z "${USER_OF[$name]:-}" ] || who=(runuser -u "${USER_OF[$name]}" --)
  echo "== $name: $block"
  (cd "$folder" && "${who[@]}" env -i PATH="$BIN:/usr/sbin:/usr/bin:/bin" HOME="$folder" \
    MANIFED="$HERE" LINK="127.0.0.1:$LINK_PORT" "$MARK" \
    ${PYTHONPYCACHEPREFIX:+PYTHONPYCACHEPREFIX="$PYTHONPYCACHEPREFIX"} "$@" \
    bash -euo pipefail -c 'source "$0/everywhere.sh"; source "$0/$1"' "$ROOT/blocks" "$block")
}

if [ -n "$HAS_USERS" ]; then
  show "$HERE" "$(dirname "$BIN")" "$("$BIN/python" -c 'import sys; print(sys.base_prefix)')" \
    ${PYTHONPYCACHEPREFIX:+"$PYTHONPYCACHEPREFIX"}
else
  echo "no users can be made here: all parties are the user $(id -un)"
fi
party link
for site in "${SITES[@]}"; do
  party "$site-node"
  party "$site" "${USER_OF[$site-node]}"
  door=$ROOT/door-$site # /run/manifed-site: the site's own, and its SuperNode's group may enter
  mkdir -m 750 "$door"
  [ -z "${USER_OF[$site]}" ] || chown "${USER_OF[$site]}:${USER_OF[$site-node]}" "$door"
done

# -- the page --------------------------------------------------------------------------------------
mkdir "$ROOT/blocks"
awk -v folder="$ROOT/blocks" '
  /^```bash [a-z]+$/ { file = sprintf("%s/%02d-%s.sh", folder, ++count, $2)
                       if ($2 == "everywhere") file = folder "/everywhere.sh"
                       printf "" > file; next }
  /^```/             { file = "" }
  file               { print > file }
' "$HERE/docs/deployment.md"
PORTS=($("$BIN/python" -c 'import socket
taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(4)]
print(*(s.getsockname()[1] for s in taken))'))
LINK_PORT=${PORTS[3]}

for path in "$ROOT"/blocks/[0-9]*.sh; do
  block=$(basename "$path")
  role=${block#*-}
  case ${role%.sh} in
    carry) as carry "$PARTIES" "$block" ;;
    link) as link "$PARTIES/link" "$block" ;;
    site | node)
      for number in "${!SITES[@]}"; do
        site=${SITES[$number]}
        name=$site
        [ "$role" = site.sh ] || name=$site-node
        node_user=${USER_OF[$site-node]:-$(id -un)}
        as "$name" "$PARTIES/$name" "$block" SITE="$site" NUMBER="$number" \
          NODE_USER="$node_user" NODE_PORT="${PORTS[$number]}" DOOR="$ROOT/door-$site"
      done
      ;;
    *) echo "$block: expected everywhere, link, site, node or carry" >&2; exit 2 ;;
  esac
done

# -- what was promised -----------------------------------------------------------------------------
for site in "${SITES[@]}"; do
  for other in "${!USER_OF[@]}"; do
    [ "$other" != "$site" ] && [ -n "${USER_OF[$other]}" ] || continue
    if runuser -u "${USER_OF[$other]}" -- cat "$PARTIES/$site/patients.csv" > /dev/null 2>&1; then
      echo "$other can read the file of $site" >&2
      exit 1
    fi
  done
done
[ -z "$HAS_USERS" ] || echo "each file could be read by its own user only"
echo "the page was played to its end"
