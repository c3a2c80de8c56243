// A member of a group (clients/python/members.py has the protocol), of franz-go.
package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"klamm-compat-tests/runner"

	"github.com/twmb/franz-go/pkg/kgo"
)

var assigned []int32

func added(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
	assigned = append(assigned, partitions[os.Args[2]]...)
	tell()
}

func removed(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
	assigned = slices.DeleteFunc(assigned, func(p int32) bool { return slices.Contains(partitions[os.Args[2]], p) })
	tell()
}

func tell() { fmt.Println("assigned", strings.Trim(fmt.Sprint(assigned), "[]")) }

func main() {
	bootstrap, topic, group, assignor := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	balancer := map[string]kgo.GroupBalancer{"range": kgo.RangeBalancer(), "cooperative-sticky": kgo.CooperativeStickyBalancer()}[assignor]
	options := []kgo.Opt{kgo.SeedBrokers(strings.Split(bootstrap, ",")...), kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll(), kgo.Balancers(balancer), kgo.SessionTimeout(6 * time.Second), kgo.HeartbeatInterval(300 * time.Millisecond),
		kgo.FetchMaxWait(100 * time.Millisecond), kgo.MetadataMinAge(100 * time.Millisecond),
		kgo.OnPartitionsAssigned(added), kgo.OnPartitionsRevoked(removed), kgo.OnPartitionsLost(removed)}
	if len(os.Args) > 5 {
		options = append(options, kgo.InstanceID(os.Args[5]), kgo.SessionTimeout(30*time.Second))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		fmt.Println("said", err)
		os.Exit(1)
	}
	ctx := runner.UntilToldToLeave()
	for ctx.Err() == nil {
		records := client.PollRecords(ctx, 500).Records()
		for _, r := range records {
			fmt.Println("read", r.Partition, r.Offset, string(r.Value))
		}
		if err := client.CommitRecords(context.Background(), records...); err != nil {
			fmt.Println("said", err) // what was read is not committed: whoever is next reads it again
		} else {
			for _, r := range records {
				fmt.Println("committed", r.Partition, r.Offset+1)
			}
		}
		client.AllowRebalance()
	}
	client.CloseAllowingRebalance()
}
