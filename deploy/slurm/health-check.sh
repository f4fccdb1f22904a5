#!/bin/sh
# Slurm HealthCheckProgram, and epilog: drains this node for a certain hardware verdict, and for no other reason.
#
#   slurm.conf: HealthCheckProgram=/etc/slurm/stallwatch-health.sh
#               HealthCheckInterval=60
#               HealthCheckNodeState=ANY
#   or          Epilog=/etc/slurm/epilog.d/*    (install -m 0755 deploy/slurm/health-check.sh /etc/slurm/epilog.d/50-stallwatch)
#
# `stallwatch node-check` ends with 10 when the daemon has proved, since the node was booted, that a GPU or the fabric of this
# node is broken. Any other end (no daemon, wrong usage, no answer) leaves the node as it is, and the script ends with 0:
# an epilog that ends with another code would drain the node by itself.
#
#   STALLWATCH           the command (/opt/stallwatch/bin/stallwatch)
#   STALLWATCH_SCONTROL  scontrol (scontrol)
#   STALLWATCH_DRY_RUN   1: say what would be done, and do nothing

case ${1:-} in -h | --help) sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;; esac
tool=${STALLWATCH:-/opt/stallwatch/bin/stallwatch}
scontrol=${STALLWATCH_SCONTROL:-scontrol}
[ -x "$tool" ] || exit 0
why=$(timeout -k 5 20 "$tool" node-check 2>/dev/null)
[ $? -eq 10 ] || exit 0
node=${SLURMD_NODENAME:-$(uname -n)}
node=${node%%.*}
# Slurm keeps a line of some hundred characters; no quotes of a verdict reach the command line.
reason="stallwatch: $(printf '%s' "$why" | head -n 1 | tr -cd '[:alnum:] ._:,()#/-' | cut -c1-200)"
if [ "${STALLWATCH_DRY_RUN:-}" = 1 ]; then
    echo "would drain $node: $reason"
    exit 0
fi
case $("$scontrol" show node "$node" 2>/dev/null) in
*DRAIN*) exit 0 ;; # somebody has, for a reason of his own
esac
"$scontrol" update "NodeName=$node" State=DRAIN "Reason=$reason"
"$tool" maintenance --for 12h --why "drained: $reason" >/dev/null 2>&1
# As an epilog: the job is over, and a reset, which is what comes next, fails while anybody has a GPU open.
[ -z "${SLURM_JOB_ID:-}" ] || "$tool" release-gpus --for 12h >/dev/null 2>&1
exit 0
