// scenario: franz-go: every codec, a group of two, a restart under it
// tier: normal
// limit: 90
// needs: go
// shows: franz-go: codecs idempotent groups cooperative admin restart
package main

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	. "klamm-compat-tests/runner"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

var background = context.Background()

func client(options ...kgo.Opt) *kgo.Client {
	c, err := kgo.NewClient(append(options, kgo.SeedBrokers(Bootstrap), kgo.MetadataMinAge(100*time.Millisecond))...)
	Check(err)
	return c
}

func produce(values []int, options ...kgo.Opt) {
	c := client(options...) // idempotent and acks=all by default
	defer c.Close()
	var records []*kgo.Record
	for _, v := range values {
		n := strconv.Itoa(v)
		records = append(records, &kgo.Record{Topic: "work", Key: []byte("k" + n), Value: []byte(n), Headers: []kgo.RecordHeader{{Key: "h", Value: []byte("1")}}, Timestamp: time.UnixMilli(1700000000000)})
	}
	ctx, cancel := context.WithTimeout(background, 30*time.Second)
	defer cancel()
	Check(c.ProduceSync(ctx, records...).FirstErr())
}

type member struct {
	client     *kgo.Client
	partitions atomic.Int32
}

// join reads and commits until the client is closed.
func join(name string, read *Read) *member {
	m := &member{}
	change := func(by int32) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, changed map[string][]int32) {
			m.partitions.Add(by * int32(len(changed["work"])))
		}
	}
	m.client = client(kgo.ConsumerGroup("team"), kgo.ConsumeTopics("work"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(), kgo.SessionTimeout(6*time.Second), kgo.HeartbeatInterval(300*time.Millisecond), kgo.FetchMaxWait(200*time.Millisecond),
		kgo.OnPartitionsAssigned(change(1)), kgo.OnPartitionsRevoked(change(-1)), kgo.OnPartitionsLost(change(-1)))
	go func() {
		for {
			fetches := m.client.PollFetches(background)
			if fetches.IsClientClosed() {
				return
			}
			fetches.EachRecord(func(r *kgo.Record) {
				value, err := strconv.Atoi(string(r.Value))
				Check(err)
				Equal("a record", []any{string(r.Key), string(r.Headers[0].Value), r.Timestamp.UnixMilli()}, []any{"k" + string(r.Value), "1", int64(1700000000000)})
				read.Add(name, value)
			})
			if err := m.client.CommitUncommittedOffsets(background); err != nil {
				fmt.Println("commit:", err) // the group rebalances, or the broker is away
			}
		}
	}()
	return m
}

func main() {
	admin := kadm.NewClient(client())
	_, err := admin.CreateTopic(background, 4, 1, nil, "work")
	Check(err)
	for i, codec := range []kgo.CompressionCodec{kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression()} {
		produce(Range(i*40, i*40+40), kgo.ProducerBatchCompression(codec))
	}
	fmt.Println("ok idempotent writes with every codec")

	var read Read
	one := join("one", &read)
	Eventually(20*time.Second, func() string { return fmt.Sprint(len(read.Values()), one.partitions.Load()) }, func() bool { return len(read.Values()) >= 200 && one.partitions.Load() == 4 })
	Equal("read by one", read.Values(), Range(0, 200))
	fmt.Println("ok one member has all four partitions and reads everything")

	two := join("two", &read)
	Eventually(30*time.Second, func() string { return fmt.Sprint(one.partitions.Load(), two.partitions.Load()) }, func() bool { return one.partitions.Load() == 2 && two.partitions.Load() == 2 })
	write := func(numbers []int) { produce(numbers) }
	ReadByBoth(&read, Range(200, 300), write)
	fmt.Println("ok a second member takes half of them")

	ReadAfterRestart(&read, Range(300, 400), write, 40*time.Second)
	fmt.Println("ok both go on after the restart")

	Eventually(20*time.Second, func() string { return "the group's lag is 0" }, func() bool {
		lags, err := admin.Lag(background, "team")
		lag := lags["team"]
		return err == nil && lag.Error() == nil && lag.Lag.Total() == 0
	})
	one.client.Close()
	two.client.Close()
	ends, err := admin.ListEndOffsets(background, "work")
	Check(err)
	sum := int64(0)
	ends.Each(func(o kadm.ListedOffset) { Check(o.Err); sum += o.Offset })
	Equal("records in all", sum, int64(400))
	fmt.Println("ok what was committed is there")
}
