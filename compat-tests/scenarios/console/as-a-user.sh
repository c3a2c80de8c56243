# scenario: as-a-user: the console tools as a person starts them: produce, consume, the group goes on after a restart
# tier: normal
# limit: 150
# needs: kafka-$WITH
# each: 0.10.2.2 2.8.2 4.4.0
# each of all: 0.9.0.1 0.11.0.3 1.1.1 3.9.1
# against: klamm 2.8.2 3.9.1
# against of 2.8.2 3.9.1 4.4.0: klamm 2.8.2 3.9.1 4.4.0
# shows: java-$WITH: groups restart
set -euo pipefail
export HEAP=256m
ask() { echo "@$1"; read -r word rest; [ "$word" = ok ] || { echo "the runner could not $1: $rest"; exit 1; }; }
same() { [ "$1" = "$2" ] || { printf 'FAILED %s\nseen:\n%s\nwanted:\n%s\n' "$3" "$1" "$2"; cat ./*.log; exit 1; }; echo "ok $3"; }
case $WITH in
  0.* | 1.*) to=(--broker-list "$BOOTSTRAP"); printf 'group.id=me\nauto.offset.reset=earliest\n' > group; from=(--bootstrap-server "$BOOTSTRAP" --consumer.config group)
    [ "$WITH" != 0.9.0.1 ] || from=(--new-consumer "${from[@]}") ;;
  *) to=(--bootstrap-server "$BOOTSTRAP"); from=(--bootstrap-server "$BOOTSTRAP" --group me) ;;
esac
produce() { "$KAFKA" tool "$WITH" kafka-console-producer "${to[@]}" --topic test 2>>producer.log; }
consume() { "$KAFKA" tool "$WITH" kafka-console-consumer "${from[@]}" --topic test --from-beginning "$@" 2>>consumer.log </dev/null; }

printf '你好\n在吗\n' | produce
same "$(consume --timeout-ms 6000 | sort)" "$(printf '你好\n在吗\n' | sort)" "two lines come through"
ask restart
printf 'still there\n' | produce
same "$(consume --timeout-ms 6000)" "still there" "after the restart the group gets only what is new"
