// Package runner is what the Go scenarios share: requests to the runner of the suite and checks that end a scenario.
package runner

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"reflect"
	"sort"
	"strings"
	"sync"
	"time"
)

// Bootstrap is the broker's address.
var Bootstrap = os.Getenv("BOOTSTRAP")

var answers = bufio.NewReader(os.Stdin)

// Ask asks the runner for restart, kill, stop, crash, start.
func Ask(request string) {
	fmt.Println("@" + request)
	answer, err := answers.ReadString('\n')
	if err != nil || !strings.HasPrefix(answer, "ok") {
		Fail("the runner could not %s the broker: %s", request, answer)
	}
}

// Fail ends the scenario.
func Fail(format string, values ...any) {
	fmt.Printf("FAILED "+format+"\n", values...)
	os.Exit(1)
}

// Check ends the scenario on an error.
func Check(err error) {
	if err != nil {
		Fail("%v", err)
	}
}

// UntilToldToLeave is over when a line comes on standard input, or its end.
func UntilToldToLeave() context.Context {
	ctx, leave := context.WithCancel(context.Background())
	go func() {
		_, _ = answers.ReadString('\n')
		leave()
	}()
	return ctx
}

// Equal ends the scenario when what was seen is not what must be seen.
func Equal(what string, seen, wanted any) {
	if !reflect.DeepEqual(seen, wanted) {
		Fail("%s: %v\n  wanted: %v", what, seen, wanted)
	}
}

// Eventually waits for a condition.
func Eventually(limit time.Duration, what func() string, condition func() bool) {
	for end := time.Now().Add(limit); !condition(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			Fail("not within %s: %s", limit, what())
		}
	}
}

// Range is the numbers from first to below end.
func Range(first, end int) (numbers []int) {
	for n := first; n < end; n++ {
		numbers = append(numbers, n)
	}
	return
}

// Read is what the members of a group have read so far.
type Read struct {
	mutex  sync.Mutex
	values []int
	by     map[string]int
}

// Add notes one value.
func (r *Read) Add(member string, value int) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if r.by == nil {
		r.by = map[string]int{}
	}
	r.values = append(r.values, value)
	r.by[member]++
}

// Values returns all of them in order, with what was read twice standing twice.
func (r *Read) Values() []int {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	values := append([]int{}, r.values...)
	sort.Ints(values)
	return values
}

// Distinct returns what was read, once each: a group that rebalances after a restart may read again what it had not committed.
func (r *Read) Distinct() (values []int) {
	for _, v := range r.Values() {
		if len(values) == 0 || v != values[len(values)-1] {
			values = append(values, v)
		}
	}
	return
}

// Take forgets everything and returns how many each member read.
func (r *Read) Take() map[string]int {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	by := r.by
	r.values, r.by = nil, nil
	return by
}

// ReadByBoth writes these numbers and demands that the members "one" and "two" read them, each a part, and each number once.
func ReadByBoth(read *Read, numbers []int, write func([]int)) {
	read.Take()
	write(numbers)
	Eventually(20*time.Second, func() string { return fmt.Sprint(read.Values()) }, func() bool { return len(read.Values()) >= len(numbers) })
	Equal("read by both", read.Values(), numbers)
	if by := read.Take(); by["one"] == 0 || by["two"] == 0 {
		Fail("only one of them read: %v", by)
	}
}

// ReadAfterRestart restarts the broker, writes these numbers, and demands that the members read each of them at least once.
func ReadAfterRestart(read *Read, numbers []int, write func([]int), limit time.Duration) {
	Ask("restart")
	write(numbers)
	Eventually(limit, func() string { return fmt.Sprint(read.Values()) }, func() bool { return len(read.Distinct()) >= len(numbers) })
	Equal("read after the restart", read.Distinct(), numbers)
}
