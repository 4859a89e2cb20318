#!/bin/bash
# Runs fuzz targets one beside the other, for some seconds each, and minimises their corpora. It needs nothing but the program, so that
# it runs on machines without Rust; `cargo xtask fuzz` runs it, too.
#
#   run.sh PROGRAM SEEDS WORK SECONDS JOBS [TARGET...]
#
#   PROGRAM  the libFuzzer program with all targets
#   SEEDS    a folder with a folder of inputs per target; it is only read, and says which targets there are
#   WORK     where corpora, findings, logs and table.tsv go; a second run with the same folder goes on
set -u
if [ $# -lt 5 ]; then
    sed -n '2,11s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
PROGRAM=$(realpath "$1") SEEDS=$(realpath "$2") SECONDS_EACH=$4 JOBS=$5
mkdir -p "$3"
WORK=$(realpath "$3")
shift 5
[ $# -gt 0 ] || set -- $(ls "$SEEDS")
export PROGRAM SEEDS WORK SECONDS_EACH

# One target: as many runs as fit into its time, since a finding ends a run, then its corpus without what adds nothing.
one() {
    target=$1
    export SEALANE_FUZZ=$target
    corpus=$WORK/corpus/$target findings=$WORK/findings/$target log=$WORK/logs/$target
    mkdir -p "$corpus" "$findings" "$WORK/logs" "$WORK/rows"
    begin=$(date +%s) runs=0 executions=0 cpu=0
    : >"$log"
    while left=$((begin + SECONDS_EACH - $(date +%s))) && [ $left -gt 0 ] && [ $runs -lt 20 ]; do
        TIMEFORMAT='%U %S'
        times=$({ time "$PROGRAM" -max_total_time=$left -timeout=20 -rss_limit_mb=3000 -print_final_stats=1 -reload=0 \
            -artifact_prefix="$findings/" "$corpus" "$SEEDS/$target" >"$log.run" 2>&1; } 2>&1)
        status=$?
        cat "$log.run" >>"$log"
        runs=$((runs + 1))
        executions=$((executions + $(sed -n 's/^stat::number_of_executed_units: *//p' "$log.run" | tail -1 | grep . || echo 0)))
        cpu=$(echo "$cpu $times" | awk '{print $1 + $2 + $3}')
        last=$(grep -a ' cov: ' "$log.run" | tail -1)
    done
    rm -f "$log.run"
    merged=$WORK/merged/$target
    rm -rf "$merged"
    mkdir -p "$merged"
    if "$PROGRAM" -merge=1 -timeout=20 -rss_limit_mb=3000 -artifact_prefix="$WORK/logs/$target-merge-" "$merged" "$corpus" "$SEEDS/$target" \
        >"$log.merge" 2>&1 && [ -n "$(ls "$merged" | head -1)" ]; then
        rm -rf "$corpus"
        mv "$merged" "$corpus"
    else
        cat "$log.merge" >>"$log"
    fi
    rm -f "$log.merge"
    cov=$(echo "${last:-}" | sed -n 's/.* cov: \([0-9]*\).*/\1/p')
    ft=$(echo "${last:-}" | sed -n 's/.* ft: \([0-9]*\).*/\1/p')
    # The end is enough; what a finding says is in the file that it left, too.
    tail -c 20000 "$log" >"$log.txt" && rm -f "$log"
    printf '%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$target" "$cpu" "$executions" "${cov:-0}" "${ft:-0}" "$(ls "$corpus" | wc -l)" \
        "$(ls "$findings" | wc -l)" >"$WORK/rows/$target"
}
export -f one

rm -rf "$WORK/rows"
printf '%s\n' "$@" | xargs -P "$JOBS" -I{} bash -c 'one {}'
{
    printf 'target\tcpu_seconds\texecutions\tcoverage\tfeatures\tcorpus\tfindings\n'
    cat "$WORK"/rows/*
} | tee "$WORK/table.tsv"
