// A producer of franz-go that writes numbered records until its standard input ends; clients/java/Endless.java says how, and
// what it prints. Arguments: BOOTSTRAP TOPIC PARTITIONS RECORDS_A_SECOND ACKS
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	. "klamm-compat-tests/runner"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	partitions, err := strconv.Atoi(os.Args[3])
	Check(err)
	rate, err := strconv.Atoi(os.Args[4])
	Check(err)
	options := []kgo.Opt{kgo.SeedBrokers(strings.Split(os.Args[1], ",")...), kgo.DefaultProduceTopic(os.Args[2]),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(5 * time.Millisecond),
		kgo.RecordDeliveryTimeout(2 * time.Minute), kgo.ProduceRequestTimeout(10 * time.Second), kgo.MetadataMinAge(100 * time.Millisecond)}
	if os.Args[5] != "all" { // it is idempotent with acks=all by default
		options = append(options, kgo.RequiredAcks(kgo.LeaderAck()), kgo.DisableIdempotentWrite(), kgo.MaxProduceRequestsInflightPerBroker(1))
	}
	producer, err := kgo.NewClient(options...)
	Check(err)
	var ended atomic.Bool
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		ended.Store(true)
	}()
	begin := time.Now()
	number := 0
	for ; !ended.Load(); number++ {
		sent := number
		value := strconv.Itoa(number) + " " + strings.Repeat("x", number%1500)
		record := &kgo.Record{Partition: int32(number % partitions), Key: []byte(strconv.Itoa(number)), Value: []byte(value)}
		producer.Produce(context.Background(), record, func(r *kgo.Record, err error) {
			if err != nil {
				fmt.Printf("error of %d: %v\n", sent, err)
			} else {
				fmt.Println(sent, r.Partition, r.Offset)
			}
		})
		time.Sleep(time.Duration(number)*time.Second/time.Duration(rate) - time.Since(begin) - 10*time.Millisecond)
	}
	Check(producer.Flush(context.Background()))
	producer.Close()
	fmt.Println("sent", number)
}
