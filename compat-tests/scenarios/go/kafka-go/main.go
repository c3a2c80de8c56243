// scenario: kafka-go: every codec, a group of two, a restart under it
// tier: normal
// limit: 120
// needs: go
// shows: kafka-go: codecs groups admin restart
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	. "klamm-compat-tests/runner"

	"github.com/segmentio/kafka-go"
)

var (
	background = context.Background()
	admin      = kafka.Client{Addr: kafka.TCP(Bootstrap), Timeout: 10 * time.Second}
)

func produce(values []int, codec kafka.Compression) {
	w := &kafka.Writer{Addr: kafka.TCP(Bootstrap), Topic: "work", Balancer: kafka.Murmur2Balancer{}, RequiredAcks: kafka.RequireAll, Compression: codec, BatchTimeout: 10 * time.Millisecond, MaxAttempts: 100}
	defer w.Close()
	var messages []kafka.Message
	for _, v := range values {
		n := strconv.Itoa(v)
		messages = append(messages, kafka.Message{Key: []byte("k" + n), Value: []byte(n), Headers: []kafka.Header{{Key: "h", Value: []byte("1")}}, Time: time.UnixMilli(1700000000000)})
	}
	ctx, cancel := context.WithTimeout(background, 30*time.Second)
	defer cancel()
	Check(w.WriteMessages(ctx, messages...))
}

// join reads and commits until the reader is closed.
func join(name string, read *Read) *kafka.Reader {
	r := kafka.NewReader(kafka.ReaderConfig{Brokers: []string{Bootstrap}, GroupID: "team", Topic: "work", StartOffset: kafka.FirstOffset,
		SessionTimeout: 6 * time.Second, RebalanceTimeout: 6 * time.Second, HeartbeatInterval: 300 * time.Millisecond, JoinGroupBackoff: 300 * time.Millisecond, MaxWait: 200 * time.Millisecond})
	go func() {
		for {
			message, err := r.FetchMessage(background)
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				fmt.Println("fetch:", err) // the broker is away
				continue
			}
			value, err := strconv.Atoi(string(message.Value))
			Check(err)
			Equal("a record", []any{string(message.Key), string(message.Headers[0].Value), message.Time.UnixMilli()}, []any{"k" + string(message.Value), "1", int64(1700000000000)})
			read.Add(name, value)
			if err := r.CommitMessages(background, message); err != nil && !errors.Is(err, io.ErrClosedPipe) {
				fmt.Println("commit:", err) // the group rebalances, or the broker is away
			}
		}
	}()
	return r
}

// assigned is how many partitions each member of the group has, the fewest first.
func assigned() (counts []int) {
	answer, err := admin.DescribeGroups(background, &kafka.DescribeGroupsRequest{GroupIDs: []string{"team"}})
	if err != nil || answer.Groups[0].Error != nil || answer.Groups[0].GroupState != "Stable" {
		return nil
	}
	for _, m := range answer.Groups[0].Members {
		for _, topic := range m.MemberAssignments.Topics {
			counts = append(counts, len(topic.Partitions))
		}
	}
	return
}

// committed is the sum of the group's offsets, or -1: this client does not try again when a broker that starts is not there yet, or knows nothing yet.
func committed() (sum int64) {
	answer, err := admin.OffsetFetch(background, &kafka.OffsetFetchRequest{GroupID: "team", Topics: map[string][]int{"work": Range(0, 4)}})
	if err != nil || answer.Error != nil {
		return -1
	}
	for _, p := range answer.Topics["work"] {
		if p.Error != nil {
			return -1
		}
		sum += max(p.CommittedOffset, 0)
	}
	return
}

func main() {
	created, err := admin.CreateTopics(background, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{{Topic: "work", NumPartitions: 4, ReplicationFactor: 1}}})
	Check(err)
	Check(created.Errors["work"])
	for i, codec := range []kafka.Compression{0, kafka.Gzip, kafka.Snappy, kafka.Lz4, kafka.Zstd} {
		produce(Range(i*40, i*40+40), codec)
	}
	fmt.Println("ok writes with every codec")

	var read Read
	one := join("one", &read)
	Eventually(20*time.Second, func() string { return fmt.Sprint(len(read.Values()), assigned()) }, func() bool { return len(read.Values()) >= 200 && len(assigned()) == 1 })
	Equal("read by one", read.Values(), Range(0, 200))
	Equal("partitions", assigned(), []int{4})
	Eventually(20*time.Second, func() string { return fmt.Sprint(committed()) }, func() bool { return committed() == 200 })
	fmt.Println("ok one member has all four partitions and reads everything")

	two := join("two", &read)
	Eventually(30*time.Second, func() string { return fmt.Sprint(assigned()) }, func() bool { return fmt.Sprint(assigned()) == "[2 2]" })
	write := func(numbers []int) { produce(numbers, 0) }
	ReadByBoth(&read, Range(200, 300), write)
	fmt.Println("ok a second member takes half of them")

	ReadAfterRestart(&read, Range(300, 400), write, 60*time.Second)
	fmt.Println("ok both go on after the restart")

	Eventually(20*time.Second, func() string { return fmt.Sprint(committed()) }, func() bool { return committed() == 400 })
	Check(one.Close())
	Check(two.Close())
	fmt.Println("ok what was committed is there")
}
