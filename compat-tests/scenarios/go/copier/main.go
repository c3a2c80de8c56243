// A program that copies a topic in transactions, aborts some of them, and ends when a transaction's outcome is not known.
// Arguments: BOOTSTRAP INPUT OUTPUT GROUP TRANSACTIONAL_ID
package main

import (
	"context"
	"fmt"
	"math/rand"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const recordsMax, oneOfIsAborted = 50, 5

func check(err error) {
	if err != nil {
		fmt.Println("ends:", err)
		os.Exit(1)
	}
}

func main() {
	bootstrap, input, output, group, id := kgo.SeedBrokers(strings.Split(os.Args[1], ",")...), os.Args[2], os.Args[3], os.Args[4], os.Args[5]
	session, err := kgo.NewGroupTransactSession(bootstrap, kgo.ConsumerGroup(group), kgo.ConsumeTopics(input), kgo.TransactionalID(id),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.RequireStableFetchOffsets(),
		kgo.TransactionTimeout(6*time.Second), kgo.SessionTimeout(6*time.Second), kgo.HeartbeatInterval(500*time.Millisecond),
		kgo.FetchMaxWait(100*time.Millisecond), kgo.MetadataMinAge(100*time.Millisecond))
	check(err)
	defer session.Close()
	for {
		fetches := session.PollRecords(context.Background(), recordsMax)
		for _, failed := range fetches.Errors() {
			fmt.Println("fetch:", failed.Err) // the broker is away
		}
		if fetches.NumRecords() == 0 {
			continue
		}
		check(session.Begin())
		failures := kgo.AbortingFirstErrPromise(session.Client())
		fetches.EachRecord(func(r *kgo.Record) {
			session.Produce(context.Background(), &kgo.Record{Topic: output, Key: r.Key, Value: r.Value}, failures.Promise())
		})
		wanted := kgo.TransactionEndTry(failures.Err() == nil && rand.Intn(oneOfIsAborted) > 0)
		_, err := session.End(context.Background(), wanted)
		check(err)
	}
}
