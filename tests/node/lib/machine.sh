# shellcheck shell=bash
# shellcheck disable=SC2154 # node.sh, which sources this file, defines the constants
# Changes that a cluster makes outside its namespaces, and their removal.

# Every process started here has SLUICE_NODE_MARK in its environment. That is how down finds exactly these processes,
# even when up was killed before it could record them.
our_processes() {
  { grep -lzxF "SLUICE_NODE_MARK=$state" /proc/[0-9]*/environ 2>/dev/null || true; } | cut -d / -f 3
}

# When a node's first process is killed, the kernel kills all other processes of the node, containers included.
end_processes() {
  local pid pids killed=() attempt
  for attempt in {1..300}; do
    mapfile -t pids < <(our_processes)
    [ ${#pids[@]} -gt 0 ] || break
    kill -KILL "${pids[@]}" 2>/dev/null || true
    killed+=("${pids[@]}")
    sleep 0.1
  done
  [ ${#pids[@]} -eq 0 ] || log "still running after $attempt attempts: processes ${pids[*]}"
  # A dying process has no environment any more, so wait until it is gone or a zombie that has not been reaped.
  for pid in "${killed[@]}"; do
    for attempt in {1..300}; do
      case $(sed -n 's/^State:[[:space:]]*//p' "/proc/$pid/status" 2>/dev/null || true) in '' | Z*) break ;; esac
      sleep 0.1
    done
  done
}

cgroup_roots() { # print the hierarchies in which a node needs a cgroup: the one of version 2, or each of version 1
  local root
  if [ "$(stat -fc %T /sys/fs/cgroup)" = cgroup2fs ]; then
    echo /sys/fs/cgroup
    return
  fi
  for root in /sys/fs/cgroup/*/; do
    if [ "$(stat -fc %T "$root")" = cgroupfs ]; then echo "${root%/}"; fi
  done
}

make_cgroup() { # make_cgroup NAME
  local root controller
  for root in $(cgroup_roots); do
    if [ -e "$root/cgroup.controllers" ]; then # version 2: the parent enables controllers for its children
      for controller in cpuset cpu memory pids; do
        echo "+$controller" >"$root/cgroup.subtree_control" ||
          die "cannot enable the cgroup controller '$controller' in $root: run on the host, or in a container with its own empty root cgroup"
      done
    fi
    mkdir -p "$root/$1"
    if [ -e "$root/$1/cpuset.cpus" ] && [ -e "$root/cpuset.cpus" ]; then # version 1: an empty set means no CPU, not all of them
      cat "$root/cpuset.cpus" >"$root/$1/cpuset.cpus"
      cat "$root/cpuset.mems" >"$root/$1/cpuset.mems"
    fi
  done
}

remove_cgroups() { # in every hierarchy: beside version 1, runc also creates one in the unified hierarchy
  local dir attempt
  for dir in /sys/fs/cgroup/sluice-node*/ /sys/fs/cgroup/*/sluice-node*/; do
    [ -d "$dir" ] || continue
    for attempt in {1..50}; do # the kernel empties a cgroup shortly after its last process has ended
      find "$dir" -depth -type d -exec rmdir {} + 2>/dev/null || true
      [ -d "$dir" ] || continue 2
      sleep 0.1
    done
    log "could not remove the cgroup $dir after $attempt attempts"
  done
}

make_mount_points() {
  local dir
  for dir in "${MOUNT_POINTS[@]}"; do
    if [ ! -d "$dir" ]; then
      echo "$dir" >>"$state/made-directories" # before mkdir, so that it is recorded even if this script is killed
      mkdir -p "$dir"
    fi
  done
}

remove_from_machine() {
  local link dir
  for link in /sys/class/net/sluice-n* "/sys/class/net/$BRIDGE"; do # deleting the bridge deletes its routes
    [ ! -e "$link" ] || ip link delete "${link##*/}" 2>/dev/null || true
  done
  remove_cgroups
  if [ -s "$state/sysctls" ]; then
    sysctl -q -p "$state/sysctls" >/dev/null || log "could not restore all of these sysctls: $(xargs -d '\n' <"$state/sysctls")"
  fi
  if [ -e "$state/made-directories" ]; then
    while read -r dir; do rmdir "$dir" 2>/dev/null || true; done < <(tac "$state/made-directories")
  fi
}
