package decode

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/task"
)

func TestUnmarshalerReadsParameterAsJSONString(t *testing.T) {
	t.Parallel()
	type request struct {
		ID    api.Number `json:"id"`
		Other api.Number `json:"other"`
	}
	plan := PlanOf[request]()
	var good, bad request
	require.Nil(t, plan.Parameters(Request{Query: "id=9007199254740993"}, &good))
	require.EqualValues(t, "9007199254740993", good.ID)
	require.Empty(t, good.Other)
	require.Equal(t, []task.Field{{Name: "id", Message: badNumber}, {Name: "other", Message: badNumber}}, plan.Parameters(Request{Query: "id=1e3&other=%22"}, &bad).Fields)
}

func TestAQueryOfTooManyParametersIsNotRead(t *testing.T) {
	t.Parallel()
	type request struct {
		ID api.Number `json:"id"`
	}
	var r request
	refused := PlanOf[request]().Parameters(Request{Query: "id=1" + strings.Repeat("&", maxParameters)}, &r)
	require.Equal(t, []task.Field{{Name: "query", Message: "must have at most 100 parameters"}}, refused.Fields)
	require.Empty(t, r.ID)
}
