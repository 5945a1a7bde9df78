#!/bin/busybox sh
# The first and only service of the guest: records Python programs and tells what came of it on the second serial line.
#
#   kernel RELEASE          once
#   version TEXT            once
#   check NAME              begins what was seen of one check
#   said LINE               the program's own words
#   stack LINE              the profile
#   exit CODE               ends it
#   done                    all checks have run
/bin/busybox --install -s /bin
export PATH=/bin HOME=/ PYTHONDONTWRITEBYTECODE=1
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tracefs trace /sys/kernel/tracing
mount -t tmpfs tmp /tmp
# The kernel's measure for what takes too long is made for real CPUs: it would take fewer and fewer samples.
echo 0 >/proc/sys/kernel/perf_cpu_time_max_percent
# As everywhere, hidden from those without the right to see them.
echo 1 >/proc/sys/kernel/kptr_restrict
stty -F /dev/ttyS1 raw -echo
exec 3>/dev/ttyS1
echo "kernel $(uname -r)" >&3
echo "version $(cat /proc/version)" >&3

# record NAME OPTION...
record() {
    name=$1
    shift
    echo "check $name" >&3
    echo "check $name"
    /bin/pyprof-bpf record --frequency 199 --bpf-stats --output "/tmp/$name.folded" "$@" >/tmp/said 2>&1
    code=$?
    sed 's/^/said /' /tmp/said >&3
    [ -f "/tmp/$name.folded" ] && sed 's/^/stack /' "/tmp/$name.folded" >&3
    echo "exit $code" >&3
}

# attached NAME WORKLOAD OPTION...: one that runs already.
attached() {
    name=$1 workload=$2
    shift 2
    # The one before was ready, too.
    : >/tmp/ready
    # Nice: on the one slow CPU the unwind tables must be made in the second that the program waits for them.
    nice -n 19 $PYTHON -X perf "/workloads/$workload.py" >/tmp/ready &
    target=$!
    waited=0
    while ! grep -q ready /tmp/ready && [ $waited -lt 120 ]; do
        sleep 0.5
        waited=$((waited + 1))
    done
    record "$name" --pid $target --duration 5 "$@"
    kill $target
    wait $target
}

# launched NAME WORKLOAD OPTION...: from its start.
launched() {
    name=$1 workload=$2
    shift 2
    record "$name" "$@" -- $PYTHON "/workloads/$workload.py" --seconds 5
}

. /checks
echo done >&3
exec 3>&-
sync
poweroff -f
