// scenario: sarama: every codec, a group of two, a restart under it
// tier: normal
// limit: 120
// needs: go
// shows: sarama: codecs idempotent groups admin restart
package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	. "klamm-compat-tests/runner"

	"github.com/IBM/sarama"
)

func config() *sarama.Config {
	c := sarama.NewConfig()
	c.Version = sarama.V2_8_0_0
	c.Producer.Return.Successes = true
	c.Producer.RequiredAcks = sarama.WaitForAll
	c.Producer.Idempotent = true
	c.Producer.Retry.Max = 100
	c.Net.MaxOpenRequests = 1
	c.Metadata.Retry.Max = 100
	c.Consumer.Offsets.Initial = sarama.OffsetOldest
	c.Consumer.Offsets.AutoCommit.Interval = 100 * time.Millisecond
	c.Consumer.Group.Session.Timeout = 6 * time.Second
	c.Consumer.Group.Heartbeat.Interval = 300 * time.Millisecond
	c.Consumer.MaxWaitTime = 200 * time.Millisecond
	return c
}

func produce(values []int, codec sarama.CompressionCodec) {
	c := config()
	c.Producer.Compression = codec
	producer, err := sarama.NewSyncProducer([]string{Bootstrap}, c)
	Check(err)
	defer producer.Close()
	var messages []*sarama.ProducerMessage
	for _, v := range values {
		n := strconv.Itoa(v)
		messages = append(messages, &sarama.ProducerMessage{Topic: "work", Key: sarama.StringEncoder("k" + n), Value: sarama.StringEncoder(n),
			Headers: []sarama.RecordHeader{{Key: []byte("h"), Value: []byte("1")}}, Timestamp: time.UnixMilli(1700000000000)})
	}
	Check(producer.SendMessages(messages))
}

type member struct {
	name       string
	read       *Read
	group      sarama.ConsumerGroup
	partitions atomic.Int32
}

func (m *member) Setup(s sarama.ConsumerGroupSession) error {
	m.partitions.Store(int32(len(s.Claims()["work"])))
	return nil
}
func (m *member) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (m *member) ConsumeClaim(s sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		value, err := strconv.Atoi(string(message.Value))
		Check(err)
		Equal("a record", []any{string(message.Key), string(message.Headers[0].Value), message.Timestamp.UnixMilli()}, []any{"k" + string(message.Value), "1", int64(1700000000000)})
		m.read.Add(m.name, value)
		s.MarkMessage(message, "")
	}
	return nil
}

// join reads and commits until the group is closed.
func join(name string, read *Read) *member {
	group, err := sarama.NewConsumerGroup([]string{Bootstrap}, "team", config())
	Check(err)
	m := &member{name: name, read: read, group: group}
	go func() {
		for {
			err := group.Consume(context.Background(), []string{"work"}, m)
			if errors.Is(err, sarama.ErrClosedConsumerGroup) {
				return
			}
			if err != nil {
				fmt.Println("consume:", err) // the broker is away
				time.Sleep(100 * time.Millisecond)
			}
		}
	}()
	return m
}

func main() {
	admin, err := sarama.NewClusterAdmin([]string{Bootstrap}, config())
	Check(err)
	Check(admin.CreateTopic("work", &sarama.TopicDetail{NumPartitions: 4, ReplicationFactor: 1}, false))
	codecs := []sarama.CompressionCodec{sarama.CompressionNone, sarama.CompressionGZIP, sarama.CompressionSnappy, sarama.CompressionLZ4, sarama.CompressionZSTD}
	for i, codec := range codecs {
		produce(Range(i*40, i*40+40), codec)
	}
	fmt.Println("ok idempotent writes with every codec")

	var read Read
	one := join("one", &read)
	Eventually(20*time.Second, func() string { return fmt.Sprint(len(read.Values()), one.partitions.Load()) }, func() bool { return len(read.Values()) >= 200 && one.partitions.Load() == 4 })
	Equal("read by one", read.Values(), Range(0, 200))
	fmt.Println("ok one member has all four partitions and reads everything")

	time.Sleep(300 * time.Millisecond) // its offsets are committed
	two := join("two", &read)
	Eventually(30*time.Second, func() string { return fmt.Sprint(one.partitions.Load(), two.partitions.Load()) }, func() bool { return one.partitions.Load() == 2 && two.partitions.Load() == 2 })
	write := func(numbers []int) { produce(numbers, sarama.CompressionNone) }
	ReadByBoth(&read, Range(200, 300), write)
	fmt.Println("ok a second member takes half of them")

	time.Sleep(300 * time.Millisecond)
	ReadAfterRestart(&read, Range(300, 400), write, 60*time.Second)
	fmt.Println("ok both go on after the restart")

	Check(one.group.Close())
	Check(two.group.Close())
	offsets, err := admin.ListConsumerGroupOffsets("team", map[string][]int32{"work": {0, 1, 2, 3}})
	Check(err)
	sum := int64(0)
	for partition := int32(0); partition < 4; partition++ {
		sum += offsets.GetBlock("work", partition).Offset
	}
	Equal("committed in all", sum, int64(400))
	fmt.Println("ok what was committed is there")
}
