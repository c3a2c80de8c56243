// A member of a group (clients/python/members.py has the protocol), of sarama, which does not say whether a commit succeeded.
package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"klamm-compat-tests/runner"

	"github.com/IBM/sarama"
)

type member struct{}

func (member) Setup(s sarama.ConsumerGroupSession) error {
	fmt.Println("assigned", strings.Trim(fmt.Sprint(s.Claims()[os.Args[2]]), "[]"))
	return nil
}

func (member) Cleanup(s sarama.ConsumerGroupSession) error {
	s.Commit()
	fmt.Println("assigned")
	return nil
}

func (member) ConsumeClaim(s sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case <-s.Context().Done():
			return nil
		case message, open := <-claim.Messages():
			if !open {
				return nil
			}
			fmt.Println("read", message.Partition, message.Offset, string(message.Value))
			s.MarkMessage(message, "")
		}
	}
}

func main() {
	config := sarama.NewConfig()
	config.Version = sarama.V2_8_0_0
	config.Metadata.Retry.Max = 100
	config.Metadata.Retry.Backoff = 100 * time.Millisecond
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Interval = 100 * time.Millisecond
	config.Consumer.Group.Session.Timeout = 6 * time.Second
	config.Consumer.Group.Heartbeat.Interval = 300 * time.Millisecond
	config.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{sarama.NewBalanceStrategyRange()}
	config.Consumer.MaxWaitTime = 100 * time.Millisecond
	if len(os.Args) > 5 {
		config.Consumer.Group.InstanceId = os.Args[5]
		config.Consumer.Group.Session.Timeout = 30 * time.Second
	}
	group, err := sarama.NewConsumerGroup(strings.Split(os.Args[1], ","), os.Args[3], config)
	if err != nil {
		fmt.Println("said", err)
		os.Exit(1)
	}
	ctx := runner.UntilToldToLeave()
	for ctx.Err() == nil {
		if err := group.Consume(ctx, []string{os.Args[2]}, member{}); err != nil && !errors.Is(err, sarama.ErrClosedConsumerGroup) {
			fmt.Println("said", err) // the broker is away
			time.Sleep(100 * time.Millisecond)
		}
	}
	group.Close()
}
