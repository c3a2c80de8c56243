// scenario: franz-go-versions: franz-go speaks as the clients of every Kafka from 0.8.2 to 4.1 did
// tier: normal
// limit: 150
// needs: go
// shows: franz-go: codecs groups versions
package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	. "klamm-compat-tests/runner"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kversion"
)

var versions = strings.Fields("0.8.2 0.9.0 0.10.0 0.10.1 0.10.2 0.11.0 1.0.0 1.1.0 2.0.0 2.1.0 2.2.0 2.3.0 2.4.0 2.5.0 2.6.0 2.7.0 2.8.0 3.0.0 3.3.0 3.6.0 3.9.0 4.0.0 4.1.0")

func main() {
	for _, version := range versions {
		at := kversion.FromString("v" + version)
		if os.Getenv("AGAINST") == "4.4.0" && version < "2.1" {
			continue // Apache Kafka 4 serves no client before 2.1
		}
		speak(version, at)
		fmt.Println("ok as for", version)
	}
}

func speak(version string, at *kversion.Versions) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	topic := "as-for-" + version
	client := func(more ...kgo.Opt) *kgo.Client {
		options := append(more, kgo.SeedBrokers(Bootstrap), kgo.MaxVersions(at), kgo.AllowAutoTopicCreation(), kgo.MetadataMinAge(50*time.Millisecond))
		if !at.HasKey(22) {
			options = append(options, kgo.DisableIdempotentWrite()) // no InitProducerId before 0.11
		}
		c, err := kgo.NewClient(options...)
		Check(err)
		return c
	}
	codecs := []kgo.CompressionCodec{kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression()}
	wanted := map[string]int{}
	for i, codec := range codecs {
		producer := client(kgo.ProducerBatchCompression(codec))
		for n := 0; n < 5; n++ {
			value := fmt.Sprint(version, " codec ", i, " record ", n)
			Check(producer.ProduceSync(ctx, &kgo.Record{Topic: topic, Key: []byte(value), Value: []byte(value)}).FirstErr())
			wanted[value]++
		}
		producer.Close()
	}
	options := []kgo.Opt{kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(100 * time.Millisecond)}
	if at.HasKey(14) {
		options = append(options, kgo.ConsumerGroup("g-"+version), kgo.DisableAutoCommit())
	}
	consumer := client(options...)
	defer consumer.Close()
	seen := map[string]int{}
	for count := 0; count < len(wanted); {
		fetches := consumer.PollFetches(ctx)
		Check(ctx.Err())
		fetches.EachRecord(func(r *kgo.Record) { seen[string(r.Value)]++; count++ })
	}
	Equal("read as for "+version, seen, wanted)
	if at.HasKey(14) {
		Check(consumer.CommitUncommittedOffsets(ctx))
		if offsetFetch, _ := at.LookupMaxKeyVersion(9); offsetFetch < 2 {
			return // it cannot ask for all topics of a group
		}
		committed, err := kadm.NewClient(client()).FetchOffsets(ctx, "g-"+version)
		Check(err)
		sum := int64(0)
		committed.Each(func(o kadm.OffsetResponse) { sum += o.At })
		Equal("committed as for "+version, sum, int64(len(wanted)))
	}
}
