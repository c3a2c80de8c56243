# scenario: kcat: lists, writes and reads with every codec, shares a group between two, goes on after a restart
# tier: quick
# limit: 60
# needs: kcat
# shows: kcat: codecs groups restart
set -euo pipefail
ask() { echo "@$1"; read -r word rest; [ "$word" = ok ] || { echo "the runner could not $1: $rest"; exit 1; }; }
same() { [ "$1" = "$2" ] || { echo "FAILED $3"; diff <(echo "$1") <(echo "$2") || true; exit 1; }; echo "ok $3"; }

for codec in none gzip snappy lz4 zstd; do
  printf "a:$codec 你好 %d\nb:$codec 在吗 %d\n" 1 1 2 2 | kcat -P -b "$BOOTSTRAP" -t many -z $codec -K: -H codec=$codec -X acks=all
done
wanted=$(for codec in none gzip snappy lz4 zstd; do printf "a:$codec 你好 %d codec=$codec\nb:$codec 在吗 %d codec=$codec\n" 1 1 2 2; done | sort)
same "$(kcat -C -q -b "$BOOTSTRAP" -t many -e -o beginning -f '%k:%s %h\n' </dev/null | sort)" "$wanted" "reads every codec, with keys and headers"

same "$(kcat -L -b "$BOOTSTRAP" -t many -J </dev/null | python3 -c 'import json,sys; t=json.load(sys.stdin)["topics"][0]; print(t["topic"], len(t["partitions"]))')" "many 4" "lists the topic that came into being by itself"

echo x | kcat -P -b "$BOOTSTRAP" -t dated -p 0
same "$(kcat -Q -b "$BOOTSTRAP" -t dated:0:1600000000000 </dev/null)" "dated [0] offset 0" "asks for an offset by time"

# two members of one group, until each has partitions; every record is seen exactly once by one of them
printf '%s\n' $(seq 1 400) | awk '{print "k" $1 ":" $1}' | kcat -P -b "$BOOTSTRAP" -t shared -K: -X linger.ms=5
for member in 1 2; do
  kcat -b "$BOOTSTRAP" -G team -X auto.offset.reset=earliest -X auto.commit.interval.ms=100 -X session.timeout.ms=6000 -u shared </dev/null >"group-$member" 2>"group-$member.log" &
done
sleep 3.5  # both are in, whichever came first gave up half
printf '%s\n' $(seq 401 800) | awk '{print "k" $1 ":" $1}' | kcat -P -b "$BOOTSTRAP" -t shared -K:
for _ in $(seq 100); do [ "$(cat group-1 group-2 | sort -un | wc -l)" = 800 ] && break; sleep 0.1; done
kill %1 %2; wait
same "$(cat group-1 group-2 | sort -un | wc -l)" 800 "two members read all 800 records"
[ "$(tail -n +1 group-1 | sort -un | awk '$1 > 400' | wc -l)" -gt 0 ] && [ "$(sort -un group-2 | awk '$1 > 400' | wc -l)" -gt 0 ] || { echo "FAILED both members work"; cat group-*.log; exit 1; }
same "$(cat group-1 group-2 | awk '$1 > 400' | sort -n | uniq -d)" "" "nothing twice once both are in"

ask restart
printf 'x:%s\n' 801 802 803 | kcat -P -b "$BOOTSTRAP" -t shared -K:
same "$(kcat -b "$BOOTSTRAP" -G team -q -e -X auto.offset.reset=earliest shared </dev/null 2>/dev/null | sort -n)" "$(printf '%s\n' 801 802 803)" "the group goes on where it was"
