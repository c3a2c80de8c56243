# scenario: copies-of-old: two programs of a Java client of 2017 copy in transactions while they and the broker are killed every few seconds: read_committed holds each record exactly once, read_uncommitted what was aborted too
# tier: all
# limit: 600
# soak limit: 5400
# needs: python-new kafka-0.11.0.3
# against: klamm 2.8.2 3.9.1
# broker: transaction.abort.timed.out.transaction.cleanup.interval.ms=500
# shows: java-0.11.0.3: exactly-once kill
from exactly_once import *

ROUNDS = 100 if os.environ["SOAK"] else 3

copies = Copies("java-0.11.0.3")
copies.rounds(ROUNDS, program_killed, broker_killed, all_killed)
copies.judge()
finish()
