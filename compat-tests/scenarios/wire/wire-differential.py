# scenario: wire-differential: every API in every version answers valid and odd requests as Apache Kafka does, field by field
# tier: normal
# limit: 120
# against: klamm
#
# The cases, the recorded answers of Apache Kafka and the accepted differences are in compat-tests/wire.
import os, pathlib, sys

program = pathlib.Path(__file__).resolve().parents[2] / "wire/differential.py"
os.environ["BROKER_LOG"] = os.path.join(os.environ["BROKER_DIR"], "kafka.log")
os.execv(sys.executable, [sys.executable, str(program), "--bootstrap", os.environ["BOOTSTRAP"]])
