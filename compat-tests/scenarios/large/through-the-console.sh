# scenario: 200-mb-through-the-console: 200 MB of lines through producer and consumer arrive equal and in order per partition
# tier: normal
# limit: 240
# needs: kafka-4.4.0
set -euo pipefail
export HEAP=512m
# two million numbered lines of 100 bytes
awk 'BEGIN { pad = sprintf("%92s", ""); gsub(" ", "x", pad); for (i = 0; i < 2000000; i++) printf "%07d%s\n", i, pad }' </dev/null > lines
wanted=$(sha256sum < lines)
"$KAFKA" tool 4.4.0 kafka-topics --bootstrap-server "$BOOTSTRAP" --create --topic lines --partitions 4 </dev/null
"$KAFKA" tool 4.4.0 kafka-console-consumer --bootstrap-server "$BOOTSTRAP" --topic lines --from-beginning --max-messages 2000000 \
  --formatter-property print.partition=true --timeout-ms 60000 </dev/null > seen 2> consumer.log &
"$KAFKA" tool 4.4.0 kafka-console-producer --bootstrap-server "$BOOTSTRAP" --topic lines --command-property acks=all < lines 2> producer.log
wait %1 || { echo "FAILED the consumer"; cat consumer.log; exit 1; }
cut -f2 seen | LC_ALL=C sort > sorted
[ "$(sha256sum < sorted)" = "$wanted" ] || { echo "FAILED not what was sent: $(wc -l < sorted) lines"; cat producer.log; LC_ALL=C comm -3 lines sorted | head; exit 1; }
echo "ok $(wc -c < sorted) bytes arrived, nothing lost, nothing twice"
awk -F '\t' '{ n = substr($2, 1, 7) + 0; if ($1 in last && n <= last[$1]) { print "FAILED order in " $1 " at line " NR; exit 1 } last[$1] = n } END { for (p in last) k++; if (k != 4) { print "FAILED only " k " partitions"; exit 1 } }' seen
echo "ok in order in each of four partitions"
