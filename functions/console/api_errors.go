package console

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// apiErrors has the Chinese translations of the errors that the API returns to forms, filters and buttons. In a translation %s
// is the next value of the message, and %[2]s the second. TestEveryErrorOfTheAPIHasATranslation finds missing translations.
var apiErrors = map[string]string{
	"the request has invalid fields: %s %s": "%s %s",
	"the request has invalid fields":        "请求中有无效字段",

	// errors that several fields have in common
	"begins with a space; in a query string write + as %2B": "以空格开头；在网址中请把 + 写成 %2B",
	"has further bad fields":                                "还有其他无效字段",
	"has passed":                                            "已经过去",
	"is given more than once":                               "出现了多次",
	"is given twice":                                        "出现了两次",
	"is not a known field":                                  "不是已知的字段",
	"is not a known parameter":                              "不是已知的参数",
	"is not a well-formed query string: %s":                 "查询参数格式有误：%s",
	"is required":                                           "必填",
	"is required unless ids are given: it must be %s":       "未给出 ID 时必填：%s",
	"is required if force is true: say why the message may be sent twice": "再发一次已发送的消息时必填：请说明原因",
	"is required: %s to %s characters, not only white space":              "必填：%s 到 %s 个字符，不能全是空白",
	"is required: it %s":                                    "必填：%s",
	"give either ids or name, not both":                     "必须给出 ID 或名称之一",
	"is required; it %s":                                    "必填；%s",
	"must be %s to %s characters of %s":                     "必须是 %s 到 %s 个字符，只能使用 %s",
	"must be a JSON value":                                  "必须是 JSON 值",
	"must be a list":                                        "必须是列表",
	"must be a number":                                      "必须是数字",
	"must be a number that a floating-point value can hold": "必须是浮点数能表示的数字",
	"must be a string":                                      "必须是文本",
	"must be a string, number or boolean":                   "必须是文本、数字或布尔值",
	"must be later than from":                               "必须晚于起始时间",
	"must be an RFC 3339 time such as %s":                   "必须是带时区的时间，例如 %s",
	"must be an id: an integer between %s and %s, as digits in a string or as a number": "必须是 ID：%s 到 %s 之间的整数",
	"must be an integer":                          "必须是整数",
	"must be an integer between %s and %s":        "必须是 %s 到 %s 之间的整数",
	"must be an integer that is not negative":     "必须是不小于 0 的整数",
	"must be an object":                           "必须是对象",
	"must be at most %s %s":                       "最多 %s 个",
	"must be at most %s characters":               "最多 %s 个字符",
	"must be at most a year ahead":                "最多在一年之内",
	"must be at most two years ahead":             "最多在两年之内",
	"must be between %s and %s":                   "必须在 %s 到 %s 之间",
	"must be between the years %s and %s":         "必须在 %s 年到 %s 年之间",
	"must be in the future":                       "必须在未来",
	"must be one of %s":                           "必须是以下之一：%s",
	"must be the next_after of the page before":   "必须是上一页给出的位置：请从第一页重新开始",
	"must be true or false":                       "必须是 true 或 false",
	"must be valid UTF-8":                         "必须是有效的 UTF-8 文本",
	"must hold 1 to %s ids":                       "必须有 1 到 %s 个 ID",
	"must not be blank":                           "不能为空白",
	"must not be empty":                           "不能为空",
	"must not contain NUL or unpaired surrogates": "不能包含 NUL 或不成对的代理字符",
	"repeats an earlier event":                    "与前面的事件重复",
	"repeats an earlier value":                    "与前面的值重复",

	// phone numbers and queues
	"has %s digits after %s; it %s":                "在 %[2]s 之后有 %[1]s 位数字；%[3]s",
	"has %s digits; it %s":                         "有 %s 位数字；%s",
	"has a country code that begins with 0; it %s": "国家代码以 0 开头；%s",
	"has more than %s characters; it %s":           "超过 %s 个字符；%s",
	"is for subscribe messages: %s":                "是订阅消息的队列，短信不能使用",
	"must be + or 00 and 7 to 15 digits, or else 3 to 19 digits; spaces, dashes, dots and brackets are ignored": "必须是 + 或 00 加 7 到 15 位数字，或者 3 到 19 位数字；空格、短横线、点和括号会被忽略",
	"must not contain %s here; it %s": "此处不能有 %s；%s",
	"no such queue: a name %s":        "没有这个队列：队列名%s",

	// tasks and bulk changes
	"%s bulk changes of this caller are running; wait for one, or stop one": "此调用方已有 %s 个批量操作在进行；请等待其中一个结束，或停止一个",
	"its operator was revoked":                                                                    "操作者已被吊销",
	"the token of its operator was replaced":                                                      "操作者的令牌已更换",
	"more tasks match by now than were counted: begin another bulk change":                        "现在匹配的任务比数出的多：请再次开始批量操作",
	"its operator is not an admin any more":                                                       "操作者不再是管理员",
	"its operator may not use all of its queues any more":                                         "操作者不再能使用其全部队列",
	"%s bulk changes are running; wait for one, or stop one":                                      "已有 %s 个批量操作在进行；请等待其中一个结束，或停止一个",
	"%s tasks match now, more than the expected %s; preview the change again":                     "现在匹配 %s 个任务，多于预期的 %s 个；请重新预览",
	"caller_id: a submitter may list only its own tasks":                                          "提交方只能查看自己的任务",
	"is required: it becomes the task's result":                                                   "必填：将成为任务的结果",
	"is required: succeeded, failed or resend":                                                    "必填：请选择处理方式",
	"must be between 0 and %s: the count of the preview":                                          "必须在 0 到 %s 之间：预览时的数量",
	"must be cancel, retry, succeeded, failed or resend":                                          "必须是取消、重试、判为已发送、判为失败或重新发送",
	"must be rejected, retries_exhausted, timeout, unknown, expired or cancelled":                 "必须是 rejected、retries_exhausted、timeout、unknown、expired 或 cancelled",
	"to cancel, must be scheduled or pending; to retry, must be failed; to resolve, must be held": "定时和等待中的任务可以取消，失败的可以重试，待确认的可以判定",
	"must be scheduled, pending, processing, held, succeeded or failed":                           "必须是 scheduled、pending、processing、held、succeeded 或 failed",
	"narrow the filter: more than %s tasks match, or counting them takes too long":                "请缩小筛选范围：匹配的任务超过 %s 个，或统计耗时过长",
	"only failed tasks have a reason":                                                             "只有失败的任务才有原因",
	"only failed tasks have a reason; leave out state":                                            "只有失败的任务才有原因；请不要选择其他状态",
	"the database refuses the change of task %s":                                                  "数据库拒绝了对任务 %s 的更改",
	"the reason of the task is %s; such tasks are retried only if the filter has this reason":     "任务的原因是：%s；只有筛选条件选了这个原因，才会重试这样的任务",
	"the task expired; resolve it as succeeded or failed":                                         "任务已过期；请判为已发送或失败",
	"the task expired; submit it anew":                                                            "任务已过期；请重新提交",
	"the reason of the task is %s by now":                                                         "任务现在的原因是：%s",
	"the task is %s by now":                                                                       "任务现在的状态是：%s",
	"the task is %s; only a failed task can be retried":                                           "任务的状态是：%s；只有失败的任务可以重试",
	"the task is %s; only a held task can be resolved":                                            "任务的状态是：%s；只有待确认的任务可以判定",
	"the task is %s; only a scheduled or pending task can be cancelled":                           "任务的状态是：%s；只有定时或等待中的任务可以取消",
	"the task is archived and cannot be changed; submit a new one":                                "任务已归档，不能更改；请重新提交",
	"the task was archived meanwhile":                                                             "任务在此期间已归档",

	// a task that is submitted
	"another call with this idempotency key is in progress; repeat the same call":                                                                      "同一表单正在提交；请稍后再试",
	"content is empty and this phone number has no default content; send content, or let an admin store a default with POST /api/v1/admin/default-sms": "内容为空，且该号码没有默认短信；请填写内容，或让管理员添加默认短信",
	"is missing: template %s needs it":                                                              "缺少：模板 %s 需要它",
	"is true but no template is active; create one with POST /api/v1/admin/template":                "已选择使用模板，但没有启用的模板；请先添加模板",
	"must be a JSON object of at most %s bytes":                                                     "必须是最多 %s 字节的 JSON 对象",
	"must be after send_at":                                                                         "必须晚于发送时间",
	"must be at most %s characters after templates are applied":                                     "套用模板之后最多 %s 个字符",
	"must be between 1 and 31622400":                                                                "必须在 1 到 31622400 之间",
	"must be resend, hold or fail":                                                                  "必须是 resend、hold 或 fail",
	"must be the id of a template":                                                                  "必须是模板的 ID",
	"must have 1 to %s items":                                                                       "必须有 1 到 %s 项",
	"must have at most %s parameters":                                                               "最多 %s 个参数",
	"must name an active template":                                                                  "必须是一个启用的模板",
	"must not be blank; leave it out to send the default content of the phone number":               "不能全是空白；留空则发送该号码的默认短信",
	"must not be false when a template or params are given":                                         "给出模板或参数时不能为 false",
	"must not be given together with %s":                                                            "不能与 %s 同时给出",
	"the content holds a blocked word":                                                              "内容含有屏蔽词",
	"the content contains a blocked word; change the text":                                          "内容含有屏蔽词；请修改",
	"the default content of this phone number was already sent; send content, or reset the default": "该号码的默认短信已经发送过；请填写内容，或允许默认短信再发一次",
	"this caller has %s tasks that are not finished, and may have %s: tasks are accepted again when some of these are finished": "该调用方有 %s 个未完成的任务，上限为 %s 个：其中一些完成后才能继续提交",
	"this caller may not submit to queue %s":                                                                      "该调用方不能向队列 %s 提交",
	"this caller may not use this priority":                                                                       "该调用方不能使用这个优先级",
	"this idempotency key was used with another request; use a new key for a new message":                         "此表单已提交过其他内容；请重新打开页面",
	"this idempotency key was used for a task that was deleted from the archive; use a new key for a new message": "此表单已提交过，任务已从归档中删除；请重新打开页面",
	"must be %s": "必须是 %s",

	// queues
	"must be at most a year ahead; leave it out to pause until the queue is resumed": "最多在一年之内；留空则一直暂停到手动恢复",
	"must be in the future; leave it out to pause until the queue is resumed":        "必须在未来；留空则一直暂停到手动恢复",
	"queue %s is not paused":           "队列 %s 没有暂停",
	"this caller may not use queue %s": "该调用方不能使用队列 %s",

	// templates, default SMS and blocked words
	"contains a NUL character":                                    "包含 NUL 字符",
	"is too long once its characters are normalised (NFKC)":       "字符规范化（NFKC）之后过长",
	"malformed escape %s; for a percent sign write %25":           "转义有误：%s；百分号要写成 %25",
	"more than %s parameters":                                     "参数超过 %s 个",
	"must be URL-encoded parameters, as use_template is true: %s": "作为模板参数时必须写成 name=Ann&code=1234 的形式：%s",
	"must contain a visible character":                            "不能只有空白和不可见字符",
	"must give content or use_template":                           "必须给出内容，或选择使用模板",
	"must give template_name, template_content or is_active":      "必须给出名称、内容或是否启用",
	"must not be given: the template of the path is previewed":    "不能给出：预览的是已有的模板",
	"not valid UTF-8":                                             "不是有效的 UTF-8 文本",
	"parameter %s: %s":                                            "参数 %s：%s",
	"this phone number has default content already; change it with PUT /api/v1/admin/default-sms/{id}": "该号码已有默认短信；请修改已有的一条",

	// callers
	"an admin with queues may create and change only callers whose names begin with its own name and a dot, and may grant only what it has": "限定队列的管理员创建的调用方须以自己的名称开头，且权限不能超过自己",
	"an admin with queues may not change its own permissions":                                                                               "限定队列的管理员不能修改自己的权限",
	"may be set only by an admin who is not limited to queues":                                                                              "只能由不限定队列的管理员设置",
	"must be a subject such as msg.orders.paid or a pattern of subjects such as msg.orders.> or msg.*.paid, at most 255 bytes":              "必须是主题，例如 msg.orders.paid，或主题的模式，例如 msg.orders.> 和 msg.*.paid，最多 255 字节",
	"must be between 0 and 5: the smallest number that the caller may give as priority; 0 goes first":                                       "必须在 0 到 5 之间：调用方可给任务的最小优先级数值，0 最优先",
	"must be between 0 and %s, where 0 means %s":                                                                                            "必须在 0 到 %s 之间，0 表示按设置 %s",
	"must be between 1 and %s":                                      "必须在 1 到 %s 之间",
	"must be empty for an admin, who is limited by queues alone":    "管理员必须留空：管理员只受队列限制",
	"must be submitter, sender, receiver, viewer, trigger or admin": "必须是 submitter、sender、receiver、viewer、trigger 或 admin",
	"must begin with %s.":                                           "必须以 %s. 开头",
	"must give roles, queues, business_types, receives, max_waiting_messages, max_waiting_bytes, max_waiting_tasks or best_priority": "至少要给出一项",
	"must name at least one of submitter, sender, receiver, viewer, trigger, admin":                                                  "至少选择一个角色",
	"the caller that makes this change does not exist":                                                                               "操作者不是调用方",
	"this caller belongs to another admin with queues (made_by): only that admin, the admins who made that admin, and admins who are not limited to queues may change the caller or rotate its token; this admin may revoke it": "该调用方属于另一个限定队列的管理员：只有那个管理员、它的创建者和不限定队列的管理员可以修改它或更换令牌；你可以吊销它",
	"this caller is no admin any more":                    "该调用方已不是管理员",
	"this caller is revoked; create another one":          "该调用方已吊销；请新建一个",
	"this name is taken; a revoked caller keeps its name": "名称已被使用；吊销的调用方仍保留其名称",
	"this is the name of the built-in admin":              "这是内置管理员的名称",
	"this operator and its callers have made %s callers, counting those revoked within the last day, and may make %s: revoke some and wait a day, or have an admin who is not limited to queues make the caller": "该操作者及其调用方已创建 %s 个调用方（含一天内吊销的），上限为 %s 个：请吊销一些并等一天，或让不限定队列的管理员创建",

	// messages and subscribe messages
	"%s has sent %s messages to this user within the last 15 minutes, a quarter of what an inbox holds": "%s 在最近 15 分钟内给该用户发送了 %s 条消息，已达收件箱的四分之一",
	"%s has sent %s messages with ack accepted to this user within a second":                            "%s 在一秒内以 ack accepted 给该用户发送了 %s 条消息",
	"accepts messages of this sender again in the next second, and at any time with ack saved":          "下一秒可以继续给该用户发送；用 ack saved 随时可以",
	"accepts messages of this sender again when the earlier ones are older than 15 minutes":             "随着这些消息变旧，可以继续给该用户发送",
	"another call is changing this message; repeat the same call":                                       "另一个调用正在修改这条消息，请重试",
	"another call for this message is in progress; repeat the same call":                                "这条消息的另一个请求正在进行；请稍后再试",
	"another caller submitted this message and it failed; that caller or an admin may send it again":    "这条消息由另一个调用方提交且已失败；只有该调用方或管理员可以重新发送",
	"another caller submitted this message; only that caller or an admin may send or query it":          "这条消息由另一个调用方提交；只有该调用方或管理员可以发送或查看",
	"caller_id: this caller may list only its own messages":                                             "该调用方只能查看自己的消息",
	"cannot check now whether this message exists; repeat the same call later":                          "暂时无法确认这条消息是否存在；请稍后再试",
	"is required of an admin: it must be one of the two names in the parameter between":                 "管理员必填：必须是两个用户之一",
	"is required: it must be a server_msg_id":                                                           "必填：必须是消息 ID",
	"is required: two different names joined by a comma, such as ann,bob; each %s":                      "必填：两个不同的用户名；每个%s",
	"must be a server_msg_id":                                                                                "必须是消息 ID",
	"must be one of the two names in the parameter between":                                                  "必须是两个用户之一",
	"must be the next_after of a page of this conversation":                                                  "必须是这个会话上一页给出的位置：请从第一页重新开始",
	"must be the next_after of a page of this user":                                                          "必须是这个用户上一页给出的位置：请从第一页重新开始",
	"the message is %s and has ended; only a message that has not ended can be abandoned":                    "消息的状态是：%s，已经结束；只有未结束的消息可以放弃",
	"the message is %s and has ended; only an abandoned message, or one that has not ended, can be redriven": "消息的状态是：%s，已经结束；只有已放弃或未结束的消息可以重新发送",
	"the message is %s; a message that is being sent cannot be sent again":                                   "消息的状态是：%s；正在发送的消息不会重新发送",
	"the message is archived and cannot be redriven; submit it again with another client_msg_id":             "消息已归档，不能重新发送；请用另一个 client_msg_id 重新提交",
	"the message was sent; give \"force\": true to send it twice":                                            "消息已经发送；要再发一次，请勾选“即使已经发送过”",
	"the message was sent; resend it with \"force\": true to send it twice":                                  "消息已经发送；要再发一次，请勾选“即使已经发送过”",
	"the message_data contains a blocked word; change the text":                                              "消息内容含有屏蔽词；请修改",
	"this caller has %s messages with %s bytes waiting to be delivered or confirmed, and may have %s: messages are accepted again when some of these are delivered, confirmed or abandoned": "该调用方有 %s 条消息（%s 字节）等待投递或确认，上限为 %s：其中一些投递、确认或放弃后才能继续发送",
	"this caller is neither of the two users":                                           "该调用方不是两个用户之一",
	"this caller may not use this business type":                                        "该调用方不能使用这个业务类型",
	"this client_msg_id was used with another message; use a new one for a new message": "这个 client_msg_id 已用于另一条消息；新消息请使用新的",
	"this message is not saved yet; %s":                                                 "消息尚未保存；请稍后再试",
	"too much of what was sent within the last 15 minutes came from this caller: messages are accepted again as the earlier ones get older": "最近 15 分钟内该调用方发送过多：随着时间推移可以继续发送",

	// webhooks
	"is required: an https or http URL without user name, fragment and blanks, with a port from 1 to 65535 if any, at most 2000 bytes": "必填：以 https 或 http 开头的 URL，不含用户名、片段和空白，端口（如有）为 1 到 65535，最多 2000 字节",
	"is required: deliveries that failed at this time or later are resent":                                                             "必填：从何时起失败的投递要重发",
	"the endpoint of this delivery is disabled (enable it first) or deleted (nothing can be sent there)":                               "此投递的端点已停用（请先启用）或已删除（无法再发送）",
	"must be one or more of webhook.disabled, alert.raised and alert.cleared for the format %s, and no others":                         "%s只能选择 webhook.disabled、alert.raised 和 alert.cleared，且至少选择一个",
	"must be pending, delivered or failed": "必须是 pending、delivered 或 failed",
	"must be the id of a task":             "必须是任务 ID",
	"must not have a private or other non-public address as its host; an operator can allow networks with SENDONCE_OUTGOING_NETWORKS":          "主机不能是私有地址或其他非公网地址；运维人员可用 SENDONCE_OUTGOING_NETWORKS 放行网段",
	"must be left out for cloudevents: the response shows the secret that Sendonce makes":                                                      "CloudEvents 端点不能填写密钥：密钥由 Sendonce 生成，添加后显示",
	"must be left out: robots of Slack and WeCom take no signature; anyone who knows the URL can post there":                                   "不能填写：Slack 和企业微信机器人不使用签名，知道地址即可发送",
	"must be what the robot's settings show, at most 200 letters, digits and signs without blanks":                                             "必须是机器人设置中显示的密钥，最多 200 个字母、数字和符号，不能有空白",
	"this endpoint is a robot, whose secret is made in its chat group: delete this endpoint and register it again with the robot's new secret": "该端点是机器人，密钥由群聊生成：请删除此端点，用机器人的新密钥重新添加",
	"must be the id of an endpoint": "必须是端点 ID",
	"must be webhook.disabled, alert.raised, alert.cleared, or \"task.\" with a state, such as task.failed: scheduled, pending, processing, held, succeeded or failed": "必须是 webhook.disabled、alert.raised、alert.cleared，或 task. 加状态：scheduled、pending、processing、held、succeeded、failed",
	"must not be an alert: only an admin may subscribe to alerts":             "不能是告警：只有管理员可以订阅告警",
	"the caller of this endpoint is revoked: no events are posted to it":      "该端点的调用方已吊销：不再向它发送事件",
	"this caller has %s endpoints; delete one first":                          "该调用方已有 %s 个端点；请先删除一个",
	"this caller may not see the endpoints and deliveries of another caller":  "该调用方不能查看其他调用方的端点和投递",
	"this endpoint had 10 test events within a minute: try again in a minute": "该端点一分钟内已有 10 个测试事件：请一分钟后再试",
	"this endpoint is disabled: enable it first":                              "该端点已停用：请先启用",

	// of the service
	"this instance has no slot for another waiting poll or stream; retry after the time in Retry-After": "服务繁忙，请稍后再试",
	"this instance has no slot for another call; retry after the time in Retry-After":                   "服务繁忙，请稍后再试",
	"internal error, request id %s":       "内部错误，请求 ID %s",
	"the body must have at most %s bytes": "请求最多 %s 字节",
	"the service is busy, try again":      "服务繁忙，请稍后再试",
	"the service is overloaded or its database is unavailable; repeat the same call later": "服务过载或数据库不可用，请稍后再试",
	"there is no such path": "没有这个页面",
	"this caller has too many %s; retry after the time in Retry-After":               "该调用方的请求过多，请稍后再试",
	"this caller may not act for %s; only an admin who is not limited to queues may": "该调用方不能代表 %s；只有不限定队列的管理员可以",
	"this concerns more than the queues to which this admin is limited: %s":          "这超出了该管理员限定的队列：%s",
	"this instance has no memory left for this call or its caller, try again":        "服务或该调用方的可用内存不足，请稍后再试",
	"this instance is about to end, try again":                                       "服务正在重启，请稍后再试",
	"this needs the role %s": "需要角色：%s",

	// things that are not found
	"no such bulk change":              "没有这个批量操作",
	"no such blocked word":             "没有这个屏蔽词",
	"no such dead letter":              "没有这条死信",
	"no such default content":          "没有这条默认短信",
	"no such delivery":                 "没有这次投递",
	"no such endpoint":                 "没有这个端点",
	"no such template":                 "没有这个模板",
	"no such caller":                   "没有这个调用方",
	"no such message":                  "没有这条消息",
	"no such paused template":          "没有这个已暂停的模板",
	"no such submission with this key": "没有使用这个幂等键的提交",
	"no such subscribe message":        "没有这条订阅消息",
	"no such task":                     "没有这个任务",
}

// errorPattern matches an error with values, such as "has %s digits".
type errorPattern struct {
	match       *regexp.Regexp
	translation string
}

// errorPatterns has the patterns of the errors with values, the pattern with the longest fixed text first.
var errorPatterns = sync.OnceValue(func() []errorPattern {
	var texts []string
	for text := range apiErrors {
		if strings.Contains(text, "%s") {
			texts = append(texts, text)
		}
	}
	slices.SortFunc(texts, func(a, b string) int {
		return cmp.Or(cmp.Compare(len(strings.ReplaceAll(b, "%s", "")), len(strings.ReplaceAll(a, "%s", ""))), cmp.Compare(a, b))
	})
	var patterns []errorPattern
	for _, text := range texts {
		match := "(?s)^" + strings.ReplaceAll(regexp.QuoteMeta(text), "%s", "(.*?)") + "$"
		patterns = append(patterns, errorPattern{regexp.MustCompile(match), apiErrors[text]})
	}
	return patterns
})

// translatedValues has the values that are translated, too, when they occur in an error.
var translatedValues = slices.Concat(taskStates, messageStates, endpointFormats)

// translateAPI translates an error of the API. It returns any other text unchanged, such as a text that is already translated.
func translateAPI(language, message string) string {
	if language != "zh" {
		return message
	}
	if translated := apiErrors[message]; translated != "" {
		return translated
	}
	for _, pattern := range errorPatterns() {
		if values := pattern.match.FindStringSubmatch(message); values != nil {
			return fillIn(pattern.translation, values[1:])
		}
	}
	return message
}

var valueInError = regexp.MustCompile(`%(?:\[(\d)\])?s`)

// fillIn puts the values into a translated error. A value may be an error itself.
func fillIn(text string, values []string) string {
	next := 0
	return valueInError.ReplaceAllStringFunc(text, func(verb string) string {
		at := next
		if number := valueInError.FindStringSubmatch(verb)[1]; number != "" {
			at = int(number[0]-'0') - 1
		} else {
			next++
		}
		if slices.Contains(translatedValues, values[at]) {
			return chinese[values[at]]
		}
		return translateAPI("zh", values[at])
	})
}
