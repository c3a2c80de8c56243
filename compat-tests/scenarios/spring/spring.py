# scenario: spring: a Spring Boot application sends 你好 and 在吗 and prints them, and goes on after a restart of both
# tier: normal
# limit: 120
# needs: spring-$WITH
# each: 3.5.7 4.0.7
# shows: spring-$WITH: own groups restart
#
# The application is clients/spring; its whole configuration is the four lines of application.properties. Only the
# address is another one here, given as an operator would: on the command line.
from harness import *

folder = pathlib.Path(os.environ["SPRING"]) / f"spring-{WITH}"


class Application:
    def __init__(self, name, *arguments):
        self.log = open(WORK / name, "w+")
        self.process = subprocess.Popen(
            ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dstdout.encoding=UTF-8", "-Dfile.encoding=UTF-8",
             "-cp", f"{folder}/classes:{folder}/libs/*", "community.Application", f"--spring.kafka.bootstrap-servers={BOOTSTRAP}", *arguments],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=subprocess.STDOUT)

    def printed(self):
        lines = pathlib.Path(self.log.name).read_text().splitlines()
        return [line for line in lines if line in ("你好", "在吗")]

    def stop(self):
        self.process.terminate()
        equal(self.process.wait(20), 143, "exit code after SIGTERM")


one = Application("first.log")
with check("it sends and prints two messages"):
    eventually(lambda: len(one.printed()) >= 2, "two lines printed", 60)
    equal(sorted(one.printed()), ["你好", "在吗"])
with check("it stays up over a restart of the broker and is stopped cleanly"):
    ask("restart")
    time.sleep(2)
    equal(one.process.poll(), None, "exit code")
    one.stop()
with check("started again, it prints only what is new"):
    two = Application("second.log")
    eventually(lambda: len(two.printed()) >= 2, "two lines printed", 60)
    time.sleep(1)
    equal(sorted(two.printed()), ["你好", "在吗"])
    two.stop()
if failures:
    for name in ("first.log", "second.log"):
        if (WORK / name).exists():
            print(name, (WORK / name).read_text()[-5000:])
finish()
