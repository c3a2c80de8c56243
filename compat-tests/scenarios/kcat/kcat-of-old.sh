# scenario: kcat-of-old: librdkafka speaks as it did to brokers of 0.8.2, 0.9.0 and 0.10.0, the oldest versions of each API
# tier: quick
# limit: 60
# needs: kcat
# against: klamm 2.8.2 3.9.1
# shows: kcat: codecs groups versions
set -euo pipefail
same() { [ "$1" = "$2" ] || { echo "FAILED $3"; diff <(echo "$1") <(echo "$2") || true; exit 1; }; echo "ok $3"; }
echo warm | kcat -P -b "$BOOTSTRAP" -t warm
kcat -b "$BOOTSTRAP" -G warm -q -e -X auto.offset.reset=earliest warm </dev/null >warm 2>&1  # the group coordinator is there now
for version in 0.8.2 0.9.0 0.10.0; do
  as=(-b "$BOOTSTRAP" -X api.version.request=false -X broker.version.fallback=$version)
  wanted=
  for codec in none gzip snappy; do
    lines=$(printf "$version $codec 你好 %d\n" 1 2 3)
    echo "$lines" | kcat -P "${as[@]}" -t "old-$version" -p 0 -z $codec -X acks=all
    wanted=$wanted$lines$'\n'
  done
  wanted=${wanted%$'\n'}
  same "$(kcat -C "${as[@]}" -q -t "old-$version" -p 0 -o beginning -e </dev/null)" "$wanted" "as for $version: writes and reads in order"
  same "$(kcat -C -b "$BOOTSTRAP" -q -t "old-$version" -p 0 -o beginning -e </dev/null)" "$wanted" "what was written as for $version, read as of today"
  [ $version = 0.8.2 ] && continue  # its consumers kept their groups in ZooKeeper
  same "$(kcat "${as[@]}" -G "g-$version" -q -e -X auto.offset.reset=earliest "old-$version" </dev/null 2>/dev/null)" "$wanted" "as for $version: a group reads"
  echo "$version more" | kcat -P "${as[@]}" -t "old-$version" -p 0
  same "$(kcat "${as[@]}" -G "g-$version" -q -e -X auto.offset.reset=earliest "old-$version" </dev/null 2>/dev/null)" "$version more" "as for $version: the group goes on"
done
