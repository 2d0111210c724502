package main

import (
	"strings"
	"testing"
	"time"
)

func TestParametersTellDirectionStreamsAndWhatIsOmitted(t *testing.T) {
	for text, expected := range map[string]parameters{
		`{"tcp":true,"omit":1,"time":3,"parallel":8,"reverse":true}`: {8, true, time.Second},
		`{"tcp":true,"time":3,"parallel":1,"reverse":1}`:             {1, true, 0},
		`{"tcp":true,"time":3}`:                                      {1, false, 0},
	} {
		if parsed, err := parse([]byte(text)); err != nil || parsed != expected {
			t.Errorf("%s: %v, %v", text, parsed, err)
		}
	}
	for _, text := range []string{`{"udp":true}`, `{"bidirectional":1}`, `{"parallel":12}`, `{`} {
		if parsed, err := parse([]byte(text)); err == nil {
			t.Errorf("%s: %v", text, parsed)
		}
	}
}

func TestResultsCountEachStream(t *testing.T) {
	streams := []*stream{{}, {}}
	streams[1].bytes.Store(7)
	text := string(results(streams, 4*time.Second))
	for _, part := range []string{`"bytes":7,"end_time":4,`, `"id":1,`, `"id":3,`} {
		if !strings.Contains(text, part) {
			t.Errorf("%s is not in %s", part, text)
		}
	}
}
